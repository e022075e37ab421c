// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/config"
)

// maxFiles is how many files a program may have open, as container engines have it.
const maxFiles = 1 << 20

// modprobeSetting names the program that the kernel starts to load a module.
const modprobeSetting = "/proc/sys/kernel/modprobe"

// settings are settings of the kernel: of container engines in a network namespace, of hosts that are prepared for
// usual servers, and of machines to be safe.
var settings = map[string]string{
	"/proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
	"/proc/sys/net/ipv4/ping_group_range":           "0 2147483647",
	// Redis asks for it, and the kubelet sets it: a fork may share the memory of a large process.
	"/proc/sys/vm/overcommit_memory": "1",
	// The least that Elasticsearch and OpenSearch start with.
	"/proc/sys/vm/max_map_count": "262144",
	// As systemd and distributions for workstations set them: programs that watch folders fail with the kernel's.
	"/proc/sys/fs/inotify/max_user_instances": "8192",
	"/proc/sys/fs/inotify/max_user_watches":   "524288",
	// Not a program of the image. MountModules sets Drover's.
	modprobeSetting: "",
}

// SetLimits sets the limits of programs, which processes inherit, and the kernel's settings. warn
// gets errors that are not a reason to stop.
func SetLimits(warn func(error)) error {
	for path, value := range settings {
		if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
			warn(err)
		}
	}
	for resource, limit := range map[int]uint64{unix.RLIMIT_NOFILE: maxFiles, unix.RLIMIT_NPROC: unix.RLIM_INFINITY} {
		l := unix.Rlimit{Cur: limit, Max: limit}
		if err := unix.Prlimit(0, resource, &l, nil); err != nil {
			return fmt.Errorf("limit %d of programs: %w", resource, err)
		}
	}
	return nil
}

// SetSysctls sets parameters of the kernel, up to the first that it refuses.
func SetSysctls(all []config.Sysctl) error {
	for _, s := range all {
		if err := os.WriteFile(s.Path(), []byte(s.Value), 0); err != nil {
			return fmt.Errorf("sysctls: %s=%s cannot be set: %w", s.Name, s.Value, errors.Unwrap(err))
		}
	}
	return nil
}

// SetHostname names the machine.
func SetHostname(name string) error {
	return unix.Sethostname([]byte(name))
}

// WriteNames writes the files of /etc by which programs find hosts, as a container engine does.
// None of the image's links is followed.
func WriteNames(hostname string, n Names) error {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(root) }()
	etc, err := openEtc(root)
	if err != nil {
		return fmt.Errorf("the image's /etc: %w", err)
	}
	defer func() { _ = unix.Close(etc) }()
	err = errors.Join(writeFile(etc, "hostname", hostname+"\n"), writeFile(etc, "hosts", n.hosts(hostname)))
	if text := n.resolvers(); text != "" {
		err = errors.Join(err, writeFile(etc, "resolv.conf", text))
	}
	return err
}

// openEtc opens /etc, which an image need not have, and refuses one that is a link.
func openEtc(root int) (int, error) {
	if err := unix.Mkdirat(root, "etc", 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return unix.Openat2(root, "etc", &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// writeFile replaces a file of a folder, whatever it was, unless it has the text already.
func writeFile(dir int, name, text string) error {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	if fd, err := unix.Openat2(dir, name, &how); err == nil {
		old := os.NewFile(uintptr(fd), name)
		same := hasText(old, text)
		_ = old.Close()
		if same {
			return nil
		}
	}
	if err := unix.Unlinkat(dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("replace /etc/%s: %w", name, err)
	}
	how.Flags, how.Mode = unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644
	fd, err := unix.Openat2(dir, name, &how)
	if err != nil {
		return fmt.Errorf("write /etc/%s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// hasText reports whether a file is a regular one with exactly this text.
func hasText(f *os.File, text string) bool {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(text)) {
		return false
	}
	content := make([]byte, len(text))
	n, _ := f.Read(content)
	return string(content[:n]) == text
}

// ReadEtc reads a file of /etc of the image, empty where it is not there. Only a regular file counts.
func ReadEtc(name string) ([]byte, error) {
	const most = 16 << 20
	path := "/etc/" + strings.ReplaceAll(name, "/", "")
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // of the image
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s of the image is not a regular file of at most %d bytes: %w", path, most, errors.Join(err, unix.EINVAL))
	}
	content := make([]byte, info.Size())
	n, err := f.Read(content)
	if n == 0 && info.Size() > 0 {
		return nil, err
	}
	return content[:n], nil
}
