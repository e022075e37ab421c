// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package boot_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/client"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/datadisk"
	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/tier"
)

func folderOf(children map[string]*erofs.Inode) *erofs.Inode {
	return &erofs.Inode{Mode: unix.S_IFDIR | 0o755, Children: children}
}

func linkTo(target string) *erofs.Inode {
	return &erofs.Inode{Mode: unix.S_IFLNK | 0o777, Target: target}
}

// addVolume adds a disk. One of a size has a file system.
func (m *machine) addVolume(v config.Volume, size int64) {
	m.t.Helper()
	m.config.Volumes = append(m.config.Volumes, v)
	f, err := os.Create(m.path(v.Serial))
	assert.NoError(m.t, err)
	defer func() { _ = f.Close() }()
	if size > 0 {
		assert.NoError(m.t, datadisk.Write(f, size))
		return
	}
	assert.NoError(m.t, f.Truncate(1<<20))
}

// uuidOf returns the UUID in the superblock of a disk, and checks its file system.
func (m *machine) uuidOf(name string) (id [16]byte) {
	m.t.Helper()
	f, err := os.Open(m.path(name))
	assert.NoError(m.t, err)
	defer func() { _ = f.Close() }()
	_, err = f.ReadAt(id[:], 1024+0x68)
	assert.NoError(m.t, err)
	if out, err := exec.CommandContext(m.t.Context(), "e2fsck", "-f", "-n", f.Name()).CombinedOutput(); err != nil && !strings.Contains(string(out), "lost+found not found") {
		m.t.Errorf("e2fsck of %s: %v\n%s", name, err, out)
	}
	return id
}

// wantExec checks what the image's program prints.
func (m *machine) wantExec(c *client.Client, want string, args ...string) {
	m.t.Helper()
	exit, out := m.exec(c, func(c *client.Command) { c.Stderr = c.Stdout }, args...)
	assert.True(m.t, exit.Code == 0 && out == want, "%q ends with %+v and prints %q, want %q", args, exit, out, want)
}

// TestVolumes boots an image with VOLUMEs and disks twice.
func TestVolumes(t *testing.T) {
	t.Parallel()
	m := newMachineOf(t, 128<<20, func(root map[string]*erofs.Inode) {
		kept := &erofs.Inode{Mode: unix.S_IFDIR | unix.S_ISGID | 0o750, UID: 1000, GID: 1001, Children: map[string]*erofs.Inode{
			"program": root["bin"].Children["plain"], "nested": folderOf(map[string]*erofs.Inode{"deep": root["bin"].Children["plain"]}),
		}}
		root["kept"] = folderOf(nil)
		root["srv"] = folderOf(map[string]*erofs.Inode{"kept": kept, "data": folderOf(map[string]*erofs.Inode{"first": root["bin"].Children["plain"]}), "out": linkTo("../../../../kept")})
	})
	m.config.Args = []string{"program", "serve"}
	m.config.ImageVolumes = []string{"/srv/kept", "/srv/kept/nested", "/srv/data", "/srv/out/in", "/made/here"}
	m.addVolume(config.Volume{Serial: "data", Path: "/srv/data"}, 64<<20)
	m.addVolume(config.Volume{Serial: "inner", Path: "/srv/kept/nested/disk"}, 64<<20)
	m.addVolume(config.Volume{Serial: "blank"}, 0)
	m.start()
	c := m.dial()
	mounts := m.report(c, nil).Mounts
	for _, path := range []string{"/srv/data", "/srv/kept", "/srv/kept/nested", "/srv/kept/nested/disk", "/kept/in", "/made/here"} {
		assert.Contains(t, "the mounts", mounts, " "+path+" ext4 rw,")
	}
	assert.True(t, strings.Count(mounts, " ext4 ") == 6, "the mounts are %s", mounts)
	m.wantExec(c, "dgrwxr-x---\n", "mode", "/srv/kept")
	m.wantExec(c, "plain", "read", "/srv/kept/program")
	m.wantExec(c, "plain", "read", "/srv/kept/nested/deep")
	m.wantExec(c, "plain", "read", "/srv/data/first")
	m.wantExec(c, "Lrwxrwxrwx\n", "mode", "/dev/disk/by-id/virtio-blank")
	m.wantExec(c, "", "open", "/dev/disk/by-id/virtio-blank")
	for _, path := range []string{"/srv/kept/x", "/srv/kept/nested/x", "/srv/kept/nested/disk/x", "/kept/in/x", "/made/here/x"} {
		m.wantExec(c, "", "write", path, path)
	}
	m.wantExec(c, "", "remove", "/srv/kept/program")
	m.wantExec(c, "", "remove", "/srv/data/first")
	m.stop()
	first := [][16]byte{m.uuidOf("data"), m.uuidOf("inner")}
	assert.True(t, first[0] != first[1] && first[0] != config.BlankUUID && m.uuidOf("DROVER-DATA") == config.BlankUUID, "the UUIDs are %x", first)
	assert.NoError(t, os.Truncate(m.path("data"), 256<<20))
	m.start()
	c = m.dial()
	for _, path := range []string{"/srv/kept/x", "/srv/kept/nested/x", "/srv/kept/nested/disk/x", "/kept/in/x", "/made/here/x"} {
		m.wantExec(c, path, "read", path)
	}
	for _, path := range []string{"/srv/kept/program", "/srv/data/first"} {
		exit, _ := m.exec(c, func(c *client.Command) { c.Stderr = c.Stdout }, "read", path)
		assert.True(t, exit.Code == 1, "%s is there again: %+v", path, exit)
	}
	m.stop()
	assert.True(t, m.uuidOf("data") == first[0] && m.uuidOf("inner") == first[1], "the UUIDs have changed")
}

// stop presses the power button and waits for the end.
func (m *machine) stop() {
	m.t.Helper()
	m.waitLog("serving ")
	m.pressPower()
	got := m.end()
	assert.True(m.t, got.Ended && got.Started && !got.Failed, "the guest claims %+v", got)
}

// TestBadVolumes checks that a machine does not start without one of its volumes, and says which.
func TestBadVolumes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		volumes []config.Volume
		paths   []string
		size    int64
		says    string
		inGate  bool
	}{
		"no file system":       {[]config.Volume{{Serial: "data", Path: "/srv"}}, nil, 0, `the volume data: its disk lacks an ext4 file system`, true},
		"a file":               {nil, []string{"/bin/plain"}, 0, `VOLUME "/bin/plain" of the image: the image's /bin/plain: not a directory`, false},
		"in a file":            {[]config.Volume{{Serial: "data", Path: "/bin/plain/x"}}, nil, 64 << 20, `the volume data: the image's /bin/plain: not a directory`, false},
		"a link to /proc":      {nil, []string{"/etc/links/proc/x"}, 0, `VOLUME "/etc/links/proc/x" of the image`, false},
		"a link to the root":   {nil, []string{"/etc/links/root"}, 0, `/etc/links/root leads to a folder that is "/"`, false},
		"a link to itself":     {nil, []string{"/etc/links/self"}, 0, `the image's /etc/links/self: too many levels of symbolic links`, false},
		"a link to nowhere":    {nil, []string{"/etc/links/away/x"}, 0, `the image's /etc/links/away is a link to a folder that does not exist`, false},
		"one folder":           {[]config.Volume{{Serial: "one", Path: "/usr/lib"}, {Serial: "two", Path: "/lib"}}, nil, 64 << 20, `the volume two: the volume one has the same folder, /usr/lib`, false},
		"more than the disk":   {[]config.Volume{{Serial: "data", Path: "/bin"}}, nil, 64 << 20, `the volume data: copy /bin/big: `, false},
		"more than is on disk": {nil, []string{"/bin"}, 0, `VOLUME "/bin" of the image: copy /bin/big: `, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !test.inGate {
				tier.Full(t, "each machine takes a boot; the gate has one without a file system")
			}
			m := newMachineOf(t, 64<<20, func(root map[string]*erofs.Inode) {
				root["etc"].Children["links"] = folderOf(map[string]*erofs.Inode{"proc": linkTo("/proc"), "root": linkTo("../../.."), "self": linkTo("self"), "away": linkTo("nowhere")})
			})
			if strings.HasPrefix(name, "more than") {
				m = newMachineWithBig(t)
			}
			for _, v := range test.volumes {
				m.addVolume(v, test.size)
			}
			m.config.ImageVolumes = test.paths
			m.start()
			got := m.end()
			assert.True(t, got.Ended && got.Failed && got.Code == 128, "the guest claims %+v", got)
			assert.Contains(t, "the guest says", got.Message, test.says)
		})
	}
}

// newMachineWithBig returns a machine whose image has a file of 80 MB, more than its disk takes.
func newMachineWithBig(t *testing.T) *machine {
	t.Helper()
	return newMachineWithFiles(t, 64<<20, map[string][]byte{"big": bytes.Repeat([]byte("big"), 80<<20/3)})
}

// TestInterruptedCopy checks that copies which a machine did not finish are made again.
func TestInterruptedCopy(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it takes several boots")
	content := map[string][]byte{}
	for n := range 40 {
		content[fmt.Sprint("file", n)] = bytes.Repeat([]byte{byte(n + 1)}, 1<<20)
	}
	for _, disk := range []string{"DROVER-DATA", "data"} {
		m := newMachineWithFiles(t, 128<<20, content)
		m.config.Args = []string{"program", "serve"}
		if m.config.ImageVolumes = []string{"/bin"}; disk == "data" {
			m.config.ImageVolumes = nil
			m.addVolume(config.Volume{Serial: "data", Path: "/bin"}, 128<<20)
		}
		for _, written := range []int64{1 << 20, 8 << 20, 24 << 20} {
			m.start()
			assert.Eventually(t, fmt.Sprintf("%d bytes are written", written), func(testing.TB) error {
				info, err := os.Stat(m.path(disk))
				assert.NoError(t, err)
				got := info.Sys().(*syscall.Stat_t).Blocks * 512
				return assert.ErrorUnless(got >= written, "%s has %d bytes", disk, got)
			})
			assert.NoError(t, m.process.Process.Kill())
			_ = assert.Receive(t, "the end of QEMU", m.ended)
		}
		m.start()
		c := m.dial()
		for name, want := range content {
			m.wantExec(c, string(want), "read", "/bin/"+name)
		}
		m.stop()
		m.uuidOf(disk)
	}
}
