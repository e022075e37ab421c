// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// sysctls are the values that the kubelet wants. They are mounted over the host's, so that the kubelet
// does not change the host's values, which all nodes share.
var sysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// mountAll mounts the files that nodes must not share. The host and other nodes do not see these
// mounts.
func (n *node) mountAll() error {
	if err := errors.Join(
		mount("proc", "/proc", "proc", 0),
		mount("", "/", "", unix.MS_REC|unix.MS_SHARED), // the kubelet requires it
		mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV),
		// Files that outlive a power cycle.
		mount(n.path("lib"), "/var/lib", "", unix.MS_BIND),
		mount(n.path("log"), "/var/log", "", unix.MS_BIND),
	); err != nil {
		return err
	}
	id := sha256.Sum256([]byte(n.plan.Name + n.name))
	err := errors.Join(
		n.cover("/etc/machine-id", hex.EncodeToString(id[:16])),
		n.cover("/etc/hosts", "127.0.0.1 localhost\n"+n.plan.NodeIP(n.index)+" "+n.name),
		n.cover("/proc/sys/kernel/random/boot_id", string(uuid.NewUUID())),
	)
	for name, value := range sysctls {
		err = errors.Join(err, n.cover(filepath.Join("/proc/sys", name), value))
	}
	return err
}

// cover mounts a file with a content over another file, if the other file exists.
func (n *node) cover(path, content string) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	file := n.path("covers", filepath.Base(path))
	if err := os.WriteFile(file, []byte(content+"\n"), 0o644); err != nil {
		return err
	}
	return mount(file, path, "", unix.MS_BIND)
}

func mount(source, target, kind string, flags uintptr) error {
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}
