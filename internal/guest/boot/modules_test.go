// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package boot_test

import (
	"encoding/json"
	"path"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/client"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/tier"
)

// checkModules checks that the kernel loads modules, also for a user, that the image's modprobe does, and that neither
// the modules nor the kernel's modprobe can be changed.
func checkModules(m *machine, c *client.Client) {
	t := m.t
	modprobe := strings.TrimSpace(m.report(c, nil).Modprobe)
	assert.Contains(t, "the mounts", m.report(c, nil).Mounts, path.Dir(modprobe)+" erofs ro,nosuid,nodev,noexec,")
	app := "app"
	for file, mode := range map[string]string{"/dev/fuse": "Dcrw-rw-rw-", "/dev/net/tun": "Dcrw-rw-rw-", "/dev/loop-control": "Dcrw-------"} {
		_, out := m.exec(c, nil, "mode", file)
		assert.Equal(t, file, out, mode+"\n")
	}
	for _, args := range [][]string{{"open", "/dev/fuse"}, {"open", "/dev/net/tun"}, {"sctp"}} {
		exit, _ := m.exec(c, func(c *client.Command) { c.User = &app }, args...)
		assert.True(t, exit == client.Exit{}, "%q ends with %+v", args, exit)
	}
	exit, _ := m.exec(c, func(c *client.Command) { c.Args = []string{"busybox", "modprobe", "xfs"} })
	assert.True(t, exit == client.Exit{}, "the image's modprobe ends with %+v", exit)
	_, loaded := m.exec(c, nil, "read", "/proc/modules")
	for _, name := range []string{"fuse", "tun", "sctp", "udp_tunnel", "xfs", "libcrc32c"} {
		assert.True(t, strings.Contains("\n"+loaded, "\n"+name+" "), "%s is not loaded: %s", name, loaded)
	}
	for _, args := range [][]string{{"write", modprobe, "other"}, {"remove", modprobe}, {"write", path.Join(path.Dir(modprobe), "modules.dep"), "other"}} {
		exit, _ := m.exec(c, func(c *client.Command) { c.Stderr = c.Stdout }, args...)
		assert.True(t, exit.Code == 1, "%q ends with %+v", args, exit)
	}
}

// TestModulesFolder checks where modules are mounted in images whose /lib is unusual, and that such an image runs.
func TestModulesFolder(t *testing.T) {
	t.Parallel()
	folder := func(children map[string]*erofs.Inode) *erofs.Inode {
		return &erofs.Inode{Mode: unix.S_IFDIR | 0o755, Children: children}
	}
	link := func(target string) *erofs.Inode { return &erofs.Inode{Mode: unix.S_IFLNK | 0o777, Target: target} }
	for name, test := range map[string]struct {
		lib    *erofs.Inode
		want   string
		inGate bool
	}{
		"a link out of the root":          {link("/etc/../../.."), "/modules/", true},
		"no folder":                       {nil, "/lib/modules/", false},
		"an absolute link":                {link("/usr/lib"), "/usr/lib/modules/", false},
		"a link to another file system":   {link("/proc/self/root/usr/lib"), "", false},
		"a link to itself":                {link("lib"), "", false},
		"a file":                          {&erofs.Inode{Mode: unix.S_IFREG | 0o644}, "", false},
		"a file in place of the modules":  {folder(map[string]*erofs.Inode{"modules": {Mode: unix.S_IFREG | 0o644}}), "", false},
		"a link in place of the modules":  {folder(map[string]*erofs.Inode{"modules": link("../dev/shm")}), "", false},
		"a link to a folder that is away": {link("usr/away"), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !test.inGate {
				tier.Full(t, "each image takes a boot; the gate has two")
			}
			m := newMachineOf(t, 0, func(root map[string]*erofs.Inode) {
				if root["lib"] = test.lib; test.lib == nil {
					delete(root, "lib")
				}
			})
			m.config.Args = []string{"program", "report"}
			m.start()
			got, want := m.end(), (config.Claim{Started: true, Ended: true})
			assert.True(t, got == want, "the guest claims %+v, want %+v", got, want)
			var r report
			assert.NoError(t, json.Unmarshal([]byte(m.read("log")), &r))
			modprobe := strings.TrimSpace(r.Modprobe)
			if test.want == "" {
				assert.Equal(t, "modprobe", modprobe, "")
				assert.Contains(t, "the console", m.console.String(), "modules of the kernel cannot be loaded")
				return
			}
			assert.True(t, strings.HasPrefix(modprobe, test.want) && strings.Count(modprobe, "/") == strings.Count(test.want, "/")+1, "modprobe is %q", modprobe)
		})
	}
}
