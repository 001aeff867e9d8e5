//! What a profile draws its faults from.

use super::{Disturbance, Liar, Plan, links};
use crate::agenda::MILLISECOND;
use crate::disk::Crash;
use crate::profile::Profile;
use crate::random::Random;

impl Plan {
    pub(super) fn disturbance(&self, profile: Profile, random: &mut Random) -> Disturbance {
        let node = random.index(self.nodes.len());
        let kind = match profile {
            Profile::Network => random.below(4),
            Profile::Crash => *random.pick(&[4, 4, 4, 5, 0]).unwrap_or(&4),
            Profile::Disk => *random.pick(&[4, 6, 6, 0]).unwrap_or(&6),
            Profile::Clock => *random.pick(&[7, 7, 7, 0, 2]).unwrap_or(&7),
            Profile::Reads => *random.pick(&[0, 1, 1, 2, 3, 4, 4, 5, 8]).unwrap_or(&1),
            Profile::Membership => *random.pick(&[0, 1, 2, 3, 4, 4, 5, 6]).unwrap_or(&4),
            Profile::Distant => *random.pick(&[0, 1, 2, 4, 4, 6]).unwrap_or(&4),
            Profile::Regions => *random.pick(&[4, 4, 6, 7, 8]).unwrap_or(&4),
            Profile::Clients => *random.pick(&[8, 8, 0, 2, 4]).unwrap_or(&8),
            Profile::Byzantine | Profile::Twins => *random.pick(&[0, 0, 1, 2, 3, 4]).unwrap_or(&0),
            Profile::Mixed | Profile::Calm | Profile::Mac => random.below(10),
        };
        match kind {
            0 => Disturbance::Storm(links::storm(random)),
            1 if profile == Profile::Reads => self.left_behind(random),
            1 => self.isolation(node, random),
            2 | 3 => self.partition(random),
            5 => Disturbance::PowerFailure,
            6 => Disturbance::SlowDisk {
                node,
                factor: random.between(3, 40),
            },
            7 => {
                // In another region no one may have looked at it for long.
                let most = match profile {
                    Profile::Regions => 300_000,
                    _ => 5_000,
                };
                let nanos = random.between(50, most) as i64 * MILLISECOND as i64;
                Disturbance::ClockJump {
                    node,
                    nanos: if random.chance(1, 2) { nanos } else { -nanos },
                }
            }
            8 => Disturbance::ClientRestart {
                client: random.index(self.clients),
            },
            _ => Disturbance::Crash {
                node,
                disk: match self.nodes.get(node).and_then(|r| self.liars.get(*r)) {
                    Some(Some(Liar::Forgetful)) => Crash::Forgetful,
                    _ => Crash::Honest,
                },
            },
        }
    }

    fn isolation(&self, node: usize, random: &mut Random) -> Disturbance {
        let direction = random.below(3);
        Disturbance::Partition {
            side: self.endpoints().map(|endpoint| endpoint == node).collect(),
            outwards: direction != 1,
            inwards: direction != 2,
        }
    }

    /// Some replicas receive nothing from the others, though every client reaches them.
    fn left_behind(&self, random: &mut Random) -> Disturbance {
        let nodes = self.nodes.len();
        let side = self
            .endpoints()
            .map(|endpoint| endpoint < nodes && random.chance(1, 3));
        Disturbance::LeftBehind {
            side: side.collect(),
        }
    }

    fn partition(&self, random: &mut Random) -> Disturbance {
        let direction = random.below(4);
        Disturbance::Partition {
            side: self.endpoints().map(|_| random.chance(1, 2)).collect(),
            outwards: direction != 1,
            inwards: direction != 2,
        }
    }
}
