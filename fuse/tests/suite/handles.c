// Opens what argv[2] and argv[3] in the mount argv[1] are by handles, when the kernel has forgotten
// them; then argv[4], which was removed since its handle was taken.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct file_handle *handle_of(const char *path) {
    struct file_handle *handle = calloc(1, sizeof *handle + MAX_HANDLE_SZ);
    int mount;
    handle->handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(AT_FDCWD, path, handle, &mount, 0) != 0) {
        perror(path);
        exit(1);
    }
    return handle;
}

static void forget(void) {
    FILE *caches = fopen("/proc/sys/vm/drop_caches", "w");
    if (caches == NULL || fputs("2", caches) < 0 || fclose(caches) != 0) {
        perror("drop_caches");
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    struct file_handle *file = handle_of(argv[2]), *directory = handle_of(argv[3]);
    struct file_handle *removed = handle_of(argv[4]);
    struct stat before, after;
    if (stat(argv[2], &before) != 0 || unlink(argv[4]) != 0) return 3;
    int mount = open(argv[1], O_RDONLY | O_DIRECTORY);
    forget();
    char text[16] = {0};
    int opened = open_by_handle_at(mount, file, O_RDONLY);
    if (opened < 0 || read(opened, text, 15) < 0 || fstat(opened, &after) != 0) {
        perror("the file");
        return 1;
    }
    if (strcmp(text, "by its handle") != 0 || before.st_ino != after.st_ino) {
        fprintf(stderr, "another file: %s\n", text);
        return 1;
    }
    close(opened);
    forget();
    opened = open_by_handle_at(mount, directory, O_RDONLY | O_DIRECTORY);
    char place[4096];
    if (opened < 0 || fchdir(opened) != 0 || getcwd(place, sizeof place) == NULL) {
        perror("the directory");
        return 1;
    }
    puts(place);
    opened = open_by_handle_at(mount, removed, O_RDONLY);
    if (opened >= 0 || errno != ESTALE) {
        perror("what was removed");
        return 1;
    }
    return 0;
}
