// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// setUp sets up a service of Drover in a Debian as docs/standalone.md describes, with
// what is on the disk "payload". It also makes a machine that only a shutdown of its host
// starts again.
const setUp = `set -e
mkdir -p /srv/images /var/log/journal
cp /mnt/images/* /srv/images
chmod -R a+rX /srv
install /mnt/drover /usr/local/bin/drover
useradd --system --home-dir /var/lib/drover --shell /usr/sbin/nologin drover
install -m 644 /mnt/units/* /etc/systemd/system/
mkdir -p /etc/systemd/system/drover.service.d
cat >/etc/systemd/system/drover.service.d/flags.conf <<END
[Service]
ExecStart=
ExecStart=/usr/local/bin/drover up --vm-driver qemu --qemu-accel tcg --qemu-image-dirs /srv/images
END
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
  resource: {cpu: 1, memory: 16Mi}
  image: {source: /srv/images/boot-A0.img}
`

// TestSystemd checks that a machine of drover.service outlives a restart of that service,
// ends cleanly with its host, and is back after the boot.
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
	c := sitAt(t, d.InstanceOf(spec.UID))
	c.await("finished at")
	c.login("debian", "sesame")
	const serial = "sudo sh -c 'cat /var/lib/drover/drivers/qemu/vms/*/serial.log'"
	const pid = "pgrep -f -- '-name drover-'"

	if out := c.run("sudo mount -o ro /dev/disk/by-id/virtio-payload /mnt; sudo sh /mnt/setup && sudo sh /mnt/is-up"); !strings.Contains(out, "Drover is up") {
		t.Fatalf("Drover as a service: %s", out)
	}
	c.run("sudo /usr/local/bin/drover kubectl apply -f /mnt/vm.yaml")
	if out := c.run("sudo /usr/local/bin/drover kubectl wait vm/inner --for=condition=Ready --timeout=10m || sudo /usr/local/bin/drover kubectl get vm inner -o yaml"); !strings.Contains(out, "condition met") {
		t.Fatalf("the VM: %s", out)
	}
	c.until(serial, "drover guest 1 A")
	before := c.run(pid)
	c.run("sudo systemctl restart drover && sudo sh /mnt/is-up")
	if after := c.run(pid); after != before || before == "" {
		t.Errorf("after a restart of Drover its machine is process %q, not %q", after, before)
	}
	if out := c.run("sudo systemctl stop drover-machines 2>&1; systemctl is-active drover-machines"); !strings.HasSuffix(out, "active") || strings.HasSuffix(out, "inactive") {
		t.Errorf("stopped by hand drover-machines.service says %q", out)
	}

	c.say("sudo systemctl reboot\r")
	c.await("Linux version")
	c.await("login: ")
	c.login("debian", "sesame")
	if out := c.run("sudo journalctl --quiet --boot -1 --unit drover-machines --output cat"); !strings.Contains(out, "default/inner: powered off") {
		t.Errorf("the shutdown said %q", out)
	}
	c.until(serial, "drover guest 2 A")
	if out := c.run("sudo mount -o ro /dev/disk/by-id/virtio-payload /mnt; sudo sh /mnt/is-up; sudo /usr/local/bin/drover kubectl get vm inner"); !strings.Contains(out, "Active") {
		t.Errorf("the VM is %s", out)
	}
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
			if !slices.Contains(machines[key], one) {
				t.Errorf("drover-machines.service has %s=%v: want %s in it", key, machines[key], one)
			}
		}
	}
}

// unitSettings returns the words of each setting of a unit.
func unitSettings(t *testing.T, unit string) map[string][]string {
	t.Helper()
	content := framework.ReadFile(t, filepath.Join("..", "..", "..", "config", "systemd", unit))
	settings := map[string][]string{}
	for line := range strings.Lines(content) {
		if key, value, is := strings.Cut(line, "="); is && !strings.HasPrefix(line, "#") {
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
	for _, sub := range []string{images, filepath.Join(dir, "units")} {
		assert.NoError(t, os.Mkdir(sub, 0o755))
	}
	framework.BuildBootGuest(t, images, "A", false)
	copyFile(t, binary, filepath.Join(dir, "drover"))
	for _, unit := range []string{"drover.service", "drover-machines.service"} {
		copyFile(t, filepath.Join("..", "..", "..", "config", "systemd", unit), filepath.Join(dir, "units", unit))
	}
	for name, text := range map[string]string{"setup": setUp, "is-up": isUp, "vm.yaml": innerVM} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	path := filepath.Join(e.images, "payload.img")
	makeFS(t, path, dir, fmt.Sprintf("%dM", payloadSize>>20))
	return path
}

// makeFS makes a disk that is one ext4 file system, with what is in a folder.
func makeFS(t *testing.T, path, folder, size string) {
	t.Helper()
	args := []string{"-q", "-t", "ext4", "-E", "root_owner=0:0", path, size}
	if folder != "" {
		args = append([]string{"-d", folder}, args...)
	}
	if out, err := exec.CommandContext(t.Context(), "/sbin/mke2fs", args...).CombinedOutput(); err != nil {
		t.Fatalf("mke2fs (hack/test-deps.sh installs it): %v\n%s", err, out)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	assert.NoError(t, err)
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(io.Copy(out, in)))
	assert.NoError(t, out.Close())
}

// until repeats a command until it prints a text.
func (c *terminal) until(command, text string) {
	c.t.Helper()
	assert.Eventually(c.t, fmt.Sprintf("%s prints %q", command, text), func(testing.TB) error {
		if out := c.run(command); !strings.Contains(out, text) {
			return textError(out)
		}
		return nil
	})
}
