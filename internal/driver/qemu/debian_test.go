// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// debianWithin is how long a Debian may take for one thing where it is emulated, or emulates another
// machine: far longer than any other test waits.
const debianWithin = 20 * time.Minute

// debianGuest returns the folder of the Debian, or skips the test.
func debianGuest(t *testing.T) string {
	t.Helper()
	tier.Full(t, "it emulates a whole Debian for minutes; TestLinux has a guest that reads cloud-init's disk and runs an agent")
	return framework.DebianGuest(t)
}

// TestDebian checks that the real cloud-init finds what it is given. It looks at all of
// it from inside, logged in at the serial console.
func TestDebian(t *testing.T) {
	dir := debianGuest(t)
	e := newEngine(t)
	o := e.options()
	o.ImageDirs = []string{dir}
	d := openWith(t, o)
	const password = "sesame \"quoted\", $HOME"
	spec := debianSpec(e, dir)
	spec.SSHKeys = []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDrover drover@test"}
	spec.UserData = driver.NewSecret(fmt.Sprintf(`#cloud-config
password: %q
chpasswd: {expire: false}
write_files:
- path: /etc/drover-test
  content: "written by cloud-init, for %s"
`, password, spec.UID))
	off(t, d, spec) // made, with its MAC address
	spec.NetworkData = driver.NewSecret(fmt.Sprintf(`version: 2
ethernets:
  nic:
    match: {macaddress: %q}
    set-name: drover0
    addresses: [10.0.2.77/24]
`, macOf(t, d, spec)))
	reach(t, d, spec, driver.StateRunning)
	c := sitAt(t, d.Host.InstanceOf(spec.UID))
	c.await("finished at") // cloud-init's last words
	c.login("debian", password)
	for command, want := range map[string]string{
		"hostname":                 "debian-guest",
		"cat .ssh/authorized_keys": spec.SSHKeys[0],
		"cat /etc/drover-test":     "written by cloud-init, for " + string(spec.UID),
		"sudo cloud-init query instance_id 2>/dev/null":         string(spec.UID),
		"ip -4 -o addr show dev drover0 | grep -o '10[^ ]*/24'": "10.0.2.77/24",
		"lsblk -bdno SIZE /dev/vda":                             fmt.Sprint(spec.RootDiskBytes),
	} {
		assert.Equal(t, command+" says", c.run(command), want)
	}
	checkRealAgent(t, d, spec)
	off := spec
	off.Power, off.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
	c.close()
	s := reach(t, d, off, driver.StateStopped)
	assert.True(t, s.Exit != nil && s.Exit.Code == 0, "it ended with %+v", s.Exit)
}

// checkRealAgent checks commands and interfaces by the QEMU guest agent of the distribution.
func checkRealAgent(t *testing.T, d *Driver, spec driver.ServerSpec) {
	t.Helper()
	g := &linuxGuest{d: d, spec: spec}
	for name, c := range map[string]struct {
		stdin   io.Reader
		command []string
		want    ran
	}{
		"output":       {nil, []string{"hostname"}, ran{out: "debian-guest\n"}},
		"error output": {nil, []string{"sh", "-c", "echo a >&2; echo b; exit 7"}, ran{code: 7, out: "b\n", errors: "a\n"}},
		"input":        {strings.NewReader("a\x00\xff\n"), []string{"cat"}, ran{out: "a\x00\xff\n"}},
		"signal":       {nil, []string{"sh", "-c", "kill -9 $$"}, ran{code: 137}},
		"a while":      {nil, []string{"sh", "-c", "sleep 15; echo over"}, ran{out: "over\n"}},
	} {
		assert.Equal(t, name+" by the agent", g.run(t, c.stdin, c.command...), c.want)
	}
	wantError(t, g.run(t, nil, "no-such-program").err, driver.ErrCommandNotFound, "no-such-program")
	wantError(t, g.run(t, nil, "/etc/passwd").err, driver.ErrCommandNotExecutable, "/etc/passwd")
	cut := g.run(t, nil, "head", "--bytes=4194304", "/dev/zero")
	wantError(t, cut.err, driver.ErrUnsupported, "the exit code is 0")
	assert.Equal(t, "bytes of the output came", len(cut.out), 3<<20)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- g.runOn(ctx, d, nil, "sleep", "4711").err }()
	assert.Eventually(t, "the command runs", func(testing.TB) error {
		got := g.run(t, nil, "pgrep", "-fx", "sleep 4711")
		return assert.ErrorUnless(got.code == 0 && got.err == nil, "got %+v", got)
	})
	leave()
	assert.ErrorIs(t, "Exec", <-left, context.Canceled)
	got := g.run(t, nil, "pgrep", "-fx", "sleep 4711")
	assert.True(t, got.code == 1 && got.err == nil, "the command of a caller who has left: %+v", got)
	interfaces, err := d.Interfaces(t.Context(), spec.UID)
	assert.NoError(t, err)
	if len(interfaces) != 1 || interfaces[0].Name != "drover0" || interfaces[0].MAC != macOf(t, d, spec) ||
		!slices.Contains(interfaces[0].Addresses, netip.MustParsePrefix("10.0.2.77/24")) {
		t.Errorf("the interfaces are %+v", interfaces)
	}
}

// debianSpec returns the guest that hack/debian-guest.sh has made in a folder.
func debianSpec(e *engine, dir string) driver.ServerSpec {
	spec := e.spec()
	spec.Name, spec.CPUMilli, spec.MemoryBytes = "debian-guest", 2000, 1<<30
	spec.RootDiskBytes = 3 << 30
	spec.Image = driver.Image{Source: filepath.Join(dir, "debian.img"), Kernel: &driver.Kernel{
		Source: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd.img"), Cmdline: framework.DebianCmdline,
	}}
	return spec
}

// typist is a person at the serial console.
type typist struct {
	t    *testing.T
	conn io.ReadWriteCloser
	said bytes.Buffer // what was not examined yet
}

func sitAt(t *testing.T, h *instance.Instance) *typist {
	t.Helper()
	s, err := h.Load()
	assert.NoError(t, err)
	reached, err := s.Supervisor().Reach(t.Context())
	assert.NoError(t, err)
	conn, err := reached.Console(t.Context(), true)
	assert.NoError(t, err)
	c := &typist{t: t, conn: conn}
	t.Cleanup(c.close)
	return c
}

func (c *typist) close() { _ = c.conn.Close() }

func (c *typist) say(text string) {
	c.t.Helper()
	_, err := c.conn.Write([]byte(text))
	assert.NoError(c.t, err)
}

// await reads until a text has come, and returns what came before it.
func (c *typist) await(text string) string {
	c.t.Helper()
	defer time.AfterFunc(debianWithin, c.close).Stop()
	for part := make([]byte, 4096); ; {
		if before, after, found := strings.Cut(c.said.String(), text); found {
			c.said.Reset()
			c.said.WriteString(after)
			return before
		}
		n, err := c.conn.Read(part)
		c.said.Write(part[:n])
		if err != nil {
			c.t.Fatalf("waiting for %q on the console: %v; it had %s", text, err, c.said.String())
		}
	}
}

func (c *typist) login(user, password string) {
	c.t.Helper()
	c.say("\r")
	c.await("login: ")
	c.say(user + "\r")
	c.await("assword: ")
	c.say(password + "\r")
	c.await("$ ")
	c.say("stty -echo; PS1=\r")
	c.run("sudo dmesg -n 1") // the kernel prints nothing from here on
}

// run returns what a command prints.
func (c *typist) run(command string) string {
	c.t.Helper()
	// The marks are not in the text that is sent, which may be echoed.
	c.say("echo '<'\"<\"; " + command + "; echo '>'\">\"\r")
	c.await("<<")
	return strings.TrimSpace(c.await(">>"))
}

// setUp sets up the service of the package in a Debian, with the files on the disk "payload". It also makes a
// machine that only a shutdown of its host starts again.
const setUp = `set -e
mkdir -p /srv/images /var/log/journal
cp /mnt/images/* /srv/images
chmod -R a+rX /srv
install /mnt/drover /usr/bin/drover
install -D -m 644 /mnt/package/sysusers.conf /usr/lib/sysusers.d/drover.conf
systemd-sysusers drover.conf
install -m 644 /mnt/package/*.service /etc/systemd/system/
printf 'DROVER_QEMU_ACCEL=tcg\nDROVER_QEMU_IMAGE_DIRS=/srv/images\n' >/etc/default/drover
systemctl daemon-reload
systemctl enable --now drover
`

// payloadSize is the size of the disk "payload".
const payloadSize = 400 << 20

// isUp waits for Drover, and gives up when it has ended several times.
const isUp = `#!/bin/sh
until test -e /var/lib/drover/run/ready; do
	test "$(systemctl show --property NRestarts --value drover)" -lt 3 || { journalctl --unit drover --lines 50; exit 1; }
	sleep 1
done
echo Drover is up
`

// innerVM is a VM with a guest that boots quickly although it is emulated by a
// machine that is emulated.
const innerVM = `apiVersion: cloudnative.tw/v1alpha1
kind: VirtualMachine
metadata:
  name: inner
spec:
  driver: qemu
  restartPolicy: Never
  shutdownGracePeriodSeconds: 240
  resource: {cpu: 500m, memory: 16Mi}
  image: {source: /srv/images/boot-A0.img}
`

// TestSystemd checks that a machine of drover.service outlives a restart of that service and its abrupt end, is limited to
// its fraction of a CPU then too, ends cleanly with its host, and is back after the boot.
func TestSystemd(t *testing.T) {
	dir := debianGuest(t)
	e := newEngine(t)
	o := e.options()
	o.ImageDirs = []string{dir, e.images}
	d := openWith(t, o)
	spec := debianSpec(e, dir)
	spec.RootDiskBytes, spec.MemoryBytes = 4<<30, 2<<30 // Drover, what it keeps for the host, and a machine
	spec.UserData = driver.NewSecret("#cloud-config\npassword: sesame\nchpasswd: {expire: false}\nmanage_etc_hosts: true\n")
	spec.Volumes = []driver.Volume{{Name: "payload", SizeBytes: payloadSize, ReadOnly: true, Image: &driver.Image{Source: e.payload(t)}}}
	reach(t, d, spec, driver.StateRunning)
	t.Cleanup(func() { gone(t, d, spec) })
	c := sitAt(t, d.Host.InstanceOf(spec.UID))
	c.await("finished at")
	c.login("debian", "sesame")
	const serial = "sudo sh -c 'cat /var/lib/drover/drivers/qemu/vms/*/serial.log'"
	const pid = "pgrep -f -- '-name drover-'"
	const limit = "sudo sh -c 'cd /sys/fs/cgroup/system.slice/drover.service; cat cgroup.subtree_control drover-*/cpu.max drover-*/cpu.weight drover-*/cgroup.procs'"

	out := c.run("sudo mount -o ro /dev/disk/by-id/virtio-payload /mnt; sudo sh /mnt/setup && sudo sh /mnt/is-up")
	assert.Require(t, strings.Contains(out, "Drover is up"), "Drover as a service: %s", out)
	c.run("sudo /usr/bin/drover kubectl apply -f /mnt/vm.yaml")
	out = c.run("sudo /usr/bin/drover kubectl wait vm/inner --for=condition=Ready --timeout=10m || sudo /usr/bin/drover kubectl get vm inner -o yaml")
	assert.Require(t, strings.Contains(out, "condition met"), "the VM: %s", out)
	c.until(serial, "drover guest 1 A")
	before, limited := c.run(pid), c.run(limit)
	assert.Contains(t, "the machine's control group", limited, "50000 100000")
	for _, restart := range []string{"systemctl restart drover", "systemctl kill --kill-whom=main --signal=KILL drover"} {
		c.run("sudo rm /var/lib/drover/run/ready; sudo " + restart + " && sudo sh /mnt/is-up")
		after := c.run(pid)
		assert.True(t, after == before && before != "", "after %s the machine is process %q, not %q", restart, after, before)
		c.until(limit, limited)
	}
	out = c.run("sudo systemctl stop drover-machines 2>&1; systemctl is-active drover-machines")
	assert.True(t, strings.HasSuffix(out, "active") && !strings.HasSuffix(out, "inactive"), "stopped by hand drover-machines.service says %q", out)

	c.say("sudo systemctl reboot\r")
	c.await("Linux version")
	c.await("login: ")
	c.login("debian", "sesame")
	assert.Contains(t, "the shutdown said", c.run("sudo journalctl --quiet --boot -1 --unit drover-machines --output cat"), "default/inner: powered off")
	c.until(serial, "drover guest 2 A")
	out = c.run("sudo mount -o ro /dev/disk/by-id/virtio-payload /mnt; sudo sh /mnt/is-up; sudo /usr/bin/drover kubectl get vm inner")
	assert.True(t, strings.Contains(out, "Active"), "the VM is %s\n%s", out, c.run("sudo journalctl --boot --unit drover --lines 100 --output cat"))
}

// TestUnitOrder checks that what guests rely on while they end with their host is stopped
// after drover-machines.service, and Drover before it.
func TestUnitOrder(t *testing.T) {
	t.Parallel()
	drover, machines := unitSettings(t, "drover.service"), unitSettings(t, "drover-machines.service")
	for key, needed := range map[string][]string{
		"After":             append(drover["After"], "network-online.target", "remote-fs.target", "docker.service"),
		"Wants":             {"network-online.target"}, // After alone does not start it
		"Before":            {"drover.service"},
		"RequiresMountsFor": {"/var/lib/drover"},
		"RefuseManualStop":  {"true"},
	} {
		for _, one := range needed {
			assert.True(t, slices.Contains(machines[key], one), "drover-machines.service has %s=%v: want %s in it", key, machines[key], one)
		}
	}
}

// unitSettings returns the words of each setting of a unit.
func unitSettings(t *testing.T, unit string) map[string][]string {
	t.Helper()
	content := framework.ReadFile(t, filepath.Join("..", "..", "..", "config", "debian", unit))
	settings := map[string][]string{}
	for line := range strings.Lines(content) {
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			settings[key] = append(settings[key], strings.Fields(value)...)
		}
	}
	return settings
}

// payload returns a disk with Drover, its units and a guest.
func (e *engine) payload(t *testing.T) string {
	t.Helper()
	binary, err := framework.DroverBinary()
	assert.NoError(t, err)
	dir := t.TempDir()
	images := filepath.Join(dir, "images")
	for _, sub := range []string{images, filepath.Join(dir, "package")} {
		assert.NoError(t, os.Mkdir(sub, 0o755))
	}
	framework.BuildBootGuest(t, images, "A", false)
	copyFile(t, binary, filepath.Join(dir, "drover"))
	for _, unit := range []string{"drover.service", "drover-machines.service", "sysusers.conf"} {
		copyFile(t, filepath.Join("..", "..", "..", "config", "debian", unit), filepath.Join(dir, "package", unit))
	}
	for name, text := range map[string]string{"setup": setUp, "is-up": isUp, "vm.yaml": innerVM} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	path := filepath.Join(e.images, "payload.img")
	makeFS(t, path, dir, fmt.Sprintf("%dM", payloadSize>>20))
	return path
}

// makeFS makes a disk that is one ext4 file system, with the content of a folder.
func makeFS(t *testing.T, path, folder, size string) {
	t.Helper()
	args := []string{"-q", "-t", "ext4", "-E", "root_owner=0:0", path, size}
	if folder != "" {
		args = append([]string{"-d", folder}, args...)
	}
	out, err := exec.CommandContext(t.Context(), "/sbin/mke2fs", args...).CombinedOutput()
	assert.Require(t, err == nil, "mke2fs (hack/test-deps.sh installs it): %v\n%s", err, out)
}

func copyFile(t *testing.T, source, target string) {
	t.Helper()
	in, err := os.Open(source)
	assert.NoError(t, err)
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o755)
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(io.Copy(out, in)))
	assert.NoError(t, out.Close())
}

// until repeats a command until it prints a text.
func (c *typist) until(command, text string) {
	c.t.Helper()
	assert.Eventually(c.t, fmt.Sprintf("%s prints %q", command, text), func(testing.TB) error {
		if out := c.run(command); !strings.Contains(out, text) {
			return textError(out)
		}
		return nil
	})
}
