// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// guestReport is what the Linux guest reports about itself: see hack/guest/linux.
type guestReport struct {
	Boots     int
	Cmdline   string
	CPUs      int
	MemoryKiB int64
	Disks     map[string]struct {
		Size     int64
		Serial   string
		ReadOnly bool
	}
	Seed map[string]string
	// PCI and Network are devices by address and interfaces by name.
	PCI, Network map[string]string
}

// linuxSpec returns a Linux guest, and the host port that leads to its web server.
func (e *engine) linuxSpec(t *testing.T) (driver.ServerSpec, int32) {
	t.Helper()
	guest := framework.BuildLinuxGuest(t, e.images)
	port := framework.FreePort(t)
	spec := e.spec()
	spec.MemoryBytes, spec.RootDiskBytes = 256<<20, 64<<20
	spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80, HostPort: port}}
	spec.Image = driver.Image{Kernel: &driver.Kernel{Source: guest.Kernel, Initrd: guest.Initrd, Cmdline: "console=ttyS0 quiet panic=-1 drover=a,b\"c"}}
	return spec, port
}

// get queries the guest's web server.
func get(t testing.TB, port int32, path string) (*guestReport, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	must(t, err)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if path != "/" {
		return nil, nil //nolint:nilnil // There is nothing to report.
	}
	var r guestReport
	return &r, json.NewDecoder(answer.Body).Decode(&r)
}

func report(t *testing.T, port int32) *guestReport {
	t.Helper()
	var r *guestReport
	assert.Eventually(t, "the guest answers by its host port", func(t testing.TB) (err error) {
		r, err = get(t, port, "/")
		return err
	})
	return r
}

// TestLinux checks a whole guest with a kernel of its own, a network, a disk that keeps
// what was written, and ACPI.
func TestLinux(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec, port := e.linuxSpec(t)
	spec.CPUMilli = 1500
	first := reach(t, d, spec, driver.StateRunning)
	r := report(t, port)
	if r.Boots != 1 || r.CPUs != 2 || r.MemoryKiB > 256<<10 || r.MemoryKiB < 192<<10 || !strings.HasSuffix(r.Cmdline, `drover=a,b"c`) {
		t.Errorf("the guest reports %+v", r)
	}
	if vda := r.Disks["vda"]; vda.Size != 64<<20 || vda.ReadOnly {
		t.Errorf("its disk is %+v", vda)
	}

	off := spec
	off.Power, off.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
	stopped := reach(t, d, off, driver.StateStopped)
	if stopped.Exit == nil || stopped.Exit.Code != 0 {
		t.Errorf("it ended with %+v", stopped.Exit)
	}
	again := reach(t, d, spec, driver.StateRunning)
	if r := report(t, port); r.Boots != 2 || again.Run == first.Run {
		t.Errorf("started again the guest reports %+v", r)
	}

	_, _ = get(t, port, "/panic")
	if end := waitExit(t, d, spec.UID); end.Reason != "GuestPanicked" {
		t.Errorf("a kernel that panicked ended with %+v", end)
	}
	gone(t, d, spec)
	if _, err := get(t, port, "/"); err == nil {
		t.Error("the host port still answers")
	}
}

// TestKernelFilesInOrder checks that the error is the same each time: one that changes
// between attempts would be reported as new each time.
func TestKernelFilesInOrder(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec := e.spec()
	spec.Image.Kernel = &driver.Kernel{Source: e.images + "/no-kernel", Initrd: e.images + "/no-initrd"}
	for range 20 {
		wantError(t, d.Disks.CheckKernel(spec), driver.ErrRetry, "no-kernel: no such file")
	}
}

// TestKernelFiles checks that a kernel must be in the allowed folders, as images must.
func TestKernelFiles(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	for name, c := range map[string]struct {
		kernel driver.Kernel
		kind   error
		says   string
	}{
		"no source":      {driver.Kernel{}, driver.ErrInvalid, "image.kernel.source is empty"},
		"outside":        {driver.Kernel{Source: "/etc/passwd"}, driver.ErrInvalid, `image.kernel.source is "/etc/passwd"`},
		"initrd outside": {driver.Kernel{Source: e.plain, Initrd: "/etc/shadow"}, driver.ErrInvalid, "image.kernel.initrd"},
		"missing":        {driver.Kernel{Source: e.images + "/none"}, driver.ErrRetry, "no such file"},
		"zero byte":      {driver.Kernel{Source: e.plain, Cmdline: "a\x00b"}, driver.ErrInvalid, "zero byte"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := e.spec()
			spec.Image = driver.Image{Kernel: &c.kernel}
			_, err := d.Ensure(t.Context(), spec)
			wantError(t, err, c.kind, c.says)
			if err := d.Delete(t.Context(), spec.Target, false); err != nil && !errors.Is(err, driver.ErrNotFound) {
				t.Error(err)
			}
		})
	}
}

// TestSeed checks that a guest finds exactly what cloud-init reads, and finds a change at
// its next start. Outside the guest it is not visible.
func TestSeed(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec, port := e.linuxSpec(t)
	odd := "#cloud-config\npassword: \"'$(reboot)`x` %s \\ é 漢\"\n" + strings.Repeat("# long\n", 20000)
	spec.UserData, spec.NetworkData = driver.NewSecret(odd), driver.NewSecret("version: 2\n")
	spec.SSHKeys = []string{"ssh-ed25519 AAAA odd\"'$(reboot) key"}
	s := reach(t, d, spec, driver.StateRunning)
	seed := report(t, port).Seed
	if seed["user-data"] != odd || seed["network-config"] != "version: 2\n" {
		t.Errorf("the guest found user-data of %d bytes and the network-config %q", len(seed["user-data"]), seed["network-config"])
	}
	var meta map[string]any
	must(t, json.Unmarshal([]byte(seed["meta-data"]), &meta))
	if meta["instance-id"] != string(spec.UID) || meta["local-hostname"] != "test-vm" || meta["public-keys"].([]any)[0] != spec.SSHKeys[0] {
		t.Errorf("the guest found the meta-data %v", meta)
	}
	if info, err := os.Stat(d.InstanceOf(spec.UID).File(machine.SeedFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the disk's mode is %v, %v", info.Mode(), err)
	}

	changed := spec
	changed.UserData, changed.NetworkData, changed.SSHKeys = driver.NewSecret("other"), driver.Secret{}, nil
	waiting := reach(t, d, changed, driver.StateRunning)
	if want := []string{"sshAuthorizedKeys", "userData", "networkData"}; !slices.Equal(waiting.Pending, want) {
		t.Errorf("pending are %v, want %v", waiting.Pending, want)
	}
	changed.RestartRun, changed.StopBy = s.Run, time.Now().Add(time.Hour)
	reach(t, d, changed, driver.StateRunning)
	assert.Eventually(t, "the guest finds the change", func(t testing.TB) error {
		r, err := get(t, port, "/")
		if err == nil && (len(r.Seed) != 2 || r.Seed["user-data"] != "other") {
			err = fmt.Errorf("it found %.200v", r.Seed)
		}
		return err
	})
	gone(t, d, spec)
}

// TestVolumes checks that the guest finds volumes by name and sees them grow, and that
// what it wrote outlives a time without them.
func TestVolumes(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec, port := e.linuxSpec(t)
	data := driver.Volume{Name: "data", SizeBytes: 8 << 20}
	copied := driver.Volume{Name: "copied-0123456789-xy", SizeBytes: 4 << 20, ReadOnly: true, Image: &driver.Image{Source: e.plain}}
	spec.Volumes = []driver.Volume{data, copied}
	s := reach(t, d, spec, driver.StateRunning)
	disks := report(t, port).Disks
	if v := disks["vdb"]; v.Serial != "data" || v.Size != 8<<20 || v.ReadOnly {
		t.Errorf("the first volume is %+v of %v", v, disks)
	}
	if v := disks["vdc"]; v.Serial != copied.Name || v.Size != 4<<20 || !v.ReadOnly {
		t.Errorf("the second volume is %+v of %v", v, disks)
	}

	spec.Volumes[0].SizeBytes = 16 << 20
	if grown := reach(t, d, spec, driver.StateRunning); grown.Run != s.Run || len(grown.Pending) != 0 {
		t.Errorf("grown it is %+v", grown)
	}
	if info := framework.RunQEMUImg(t, "info", "-U", d.InstanceOf(spec.UID).File(instance.VolumeFile("data"))); !strings.Contains(info, "(16777216 bytes)") {
		t.Errorf("the volume is %s", info)
	}
	smaller := spec
	smaller.Volumes = []driver.Volume{data}
	_, err := d.Ensure(t.Context(), smaller)
	wantError(t, err, driver.ErrInvalid, "volumes[0].size (data) is 8388608 bytes", "may only grow")

	without := spec
	without.Volumes = nil
	if waiting := reach(t, d, without, driver.StateRunning); !slices.Equal(waiting.Pending, []string{"volumes"}) {
		t.Errorf("pending are %v", waiting.Pending)
	}
	without.RestartRun, without.StopBy = s.Run, time.Now().Add(time.Hour)
	reach(t, d, without, driver.StateRunning)
	if _, err := os.Stat(d.InstanceOf(spec.UID).File(instance.VolumeFile("data"))); err != nil {
		t.Errorf("a volume that is not named for a while: %v", err)
	}
	gone(t, d, spec)
}

func TestBadVolumes(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	for name, c := range map[string]struct {
		volumes []driver.Volume
		kind    error
		says    string
	}{
		"name":    {[]driver.Volume{{Name: "../x", SizeBytes: 1 << 20}}, driver.ErrInvalid, "volumes[0].name"},
		"long":    {[]driver.Volume{{Name: strings.Repeat("x", 21), SizeBytes: 1 << 20}}, driver.ErrInvalid, "volumes[0].name"},
		"twice":   {[]driver.Volume{{Name: "x", SizeBytes: 1 << 20}, {Name: "x", SizeBytes: 1 << 20}}, driver.ErrInvalid, "volumes[1].name"},
		"size":    {[]driver.Volume{{Name: "x"}}, driver.ErrInvalid, "volumes[0].size"},
		"small":   {[]driver.Volume{{Name: "x", SizeBytes: 1 << 20, Image: &driver.Image{Source: e.big(t)}}}, driver.ErrInvalid, "needs 5242880"},
		"missing": {[]driver.Volume{{Name: "x", SizeBytes: 1 << 20, Image: &driver.Image{Source: e.images + "/none"}}}, driver.ErrRetry, "no such file"},
		"nowhere": {
			[]driver.Volume{{Name: "x", SizeBytes: 1 << 20}, {Name: "y", SizeBytes: 1 << 20, Image: &driver.Image{Source: "nginx"}}},
			driver.ErrInvalid,
			`spec.volumes[1].source.image.source is "nginx": it must be the absolute path of a file, or file:// before one, or begin with http://`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := e.spec()
			spec.Volumes = c.volumes
			_, err := d.Ensure(t.Context(), spec)
			wantError(t, err, c.kind, c.says)
			if err := d.Delete(t.Context(), spec.Target, false); err != nil && !errors.Is(err, driver.ErrNotFound) {
				t.Error(err)
			}
			leavesNothing(t, d)
		})
	}
}

// big returns an image of 5 MiB.
func (e *engine) big(t *testing.T) string {
	t.Helper()
	path := e.images + "/big.qcow2"
	framework.RunQEMUImg(t, "create", "-q", "-f", "qcow2", path, "5M")
	return path
}
