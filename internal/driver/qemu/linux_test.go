// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// guestReport is the report of the Linux guest about itself: see hack/guest/linux.
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

// linuxSpec returns a Linux guest without a disk.
func (e *engine) linuxSpec(t *testing.T) driver.ServerSpec {
	t.Helper()
	guest := framework.BuildLinuxGuest(t, e.images)
	spec := e.spec()
	spec.MemoryBytes = 256 << 20
	spec.Image = driver.Image{Kernel: &driver.Kernel{Source: guest.Kernel, Initrd: guest.Initrd, Cmdline: framework.GuestCmdline + " drover=a,b\"c"}}
	return spec
}

// linuxGuest is a machine with the guest of hack/guest/linux.
type linuxGuest struct {
	e      *engine
	d      *Driver
	spec   driver.ServerSpec
	server driver.Server // of the present run
	port   int32         // of the host, that leads to the guest's web server
}

// boot waits until the guest has booted for the n-th time, and returns what it reports.
func (g *linuxGuest) boot(t *testing.T, n int) *guestReport {
	t.Helper()
	g.server = boots(t, g.d, g.spec, fmt.Sprintf("drover linux guest %d is up", n))
	g.port = g.server.Ports[0].HostPort
	var r guestReport
	assert.Eventually(t, "the guest answers by its host port", func(t testing.TB) error {
		text, err := g.tryAsk(t, "/")
		if err == nil {
			err = json.Unmarshal([]byte(text), &r)
		}
		return err
	})
	assert.Require(t, r.Boots == n, "at its boot %d the guest reports %+v", n, r)
	return &r
}

// ask queries the guest's web server.
func (g *linuxGuest) ask(t testing.TB, path string) string {
	t.Helper()
	text, err := g.tryAsk(t, path)
	assert.NoError(t, err)
	return text
}

func (g *linuxGuest) tryAsk(t testing.TB, path string) (string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", g.port, path), nil)
	assert.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", path, answer.Status, text)
	}
	return string(text), err
}

// address returns the address that the guest has.
func (g *linuxGuest) address(t *testing.T) netip.Prefix {
	t.Helper()
	inst, err := g.d.Host.InstanceOf(g.spec.UID).Load()
	assert.NoError(t, err)
	return inst.Address
}

// TestLinux checks all that needs a guest with a kernel and a network. It is one guest, since its
// boots take most of the time: the first ends with its host, the second when memory runs out, and the third by the power button.
func TestLinux(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	g := &linuxGuest{e: e, d: e.open(t), spec: e.linuxSpec(t)}
	g.spec.CPUMilli, g.spec.GracePeriod = 1500, time.Hour
	g.spec.Image.Source, g.spec.RootDiskBytes = filepath.Join(e.images, "disk.img"), 64<<20
	makeFS(t, g.spec.Image.Source, "", "32M")
	g.spec.UserData, g.spec.NetworkData = driver.NewSecret(oddUserData), driver.NewSecret("version: 2\n")
	g.spec.SSHKeys = []string{"ssh-ed25519 AAAA odd\"'$(reboot) key"}
	g.spec.Volumes = []driver.Volume{
		{Name: "data", SizeBytes: 8 << 20},
		{Name: "copied-0123456789-xy", SizeBytes: 4 << 20, ReadOnly: true, Image: &driver.Image{Source: e.plain}},
	}
	const one = "127.0.0.2"
	g.spec.Ports = []driver.Port{
		{Name: "http", Protocol: "TCP", Port: 80},
		{Name: "other", Protocol: "TCP", Port: 82},
		{Name: "dns", Protocol: "UDP", Port: 53},
		{Name: "echo", Protocol: "TCP", Port: 7, HostIP: one},
		{Name: "closed-on-one", Protocol: "TCP", Port: 81, HostIP: one},
	}

	before := g.boot(t, 1)
	t.Run("Report", func(t *testing.T) { checkReport(t, before) })
	t.Run("Seed", func(t *testing.T) { g.checkSeed(t, before.Seed) })
	t.Run("Volumes", func(t *testing.T) { g.checkVolumes(t, before) })
	ended := e.shutDown(t, time.Hour)
	assert.True(t, len(ended) == 1 && ended[0].Err == nil && !ended[0].Forced, "ended: %+v", ended)
	g.d = e.open(t)
	reach(t, g.d, g.spec, driver.StateStopped) // how it ended is reported first

	after := g.boot(t, 2)
	t.Run("Devices", func(t *testing.T) { checkDevices(t, before, after) })
	t.Run("Seed", func(t *testing.T) {
		assert.True(t, len(after.Seed) == 2 && after.Seed["user-data"] == "other", "after a change the guest found %.200v", after.Seed)
	})
	t.Run("Reach", g.checkReach)
	t.Run("Dial", g.checkDial)
	t.Run("Agent", g.checkAgent)
	t.Run("ExecTogether", g.checkExecTogether)
	t.Run("HostileAgents", g.checkHostileAgents)
	t.Run("AgentTaken", g.checkAgentTaken)
	t.Run("ExecIsLost", g.checkExecIsLost)
	g.runOutOfMemory(t)

	g.boot(t, 3)
	t.Run("FileSystems", g.checkFileSystems)
	t.Run("Memory", g.checkMemory)
	t.Run("Off", g.checkOff)
	gone(t, g.d, g.spec)
	wantError(t, assert.ErrorOf(g.d.Dial(t.Context(), g.spec.UID, 7)), driver.ErrNotFound)
	wantError(t, g.run(t, nil, "echo").err, driver.ErrNotFound)
	_, err := g.tryAsk(t, "/")
	assert.True(t, err != nil, "the host port still answers")
	for _, link := range ownDescriptors(t) {
		assert.True(t, !strings.HasPrefix(link, e.dir) || !strings.Contains(link, "agent"), "%s is still open", link)
	}
}

// checkReport checks what the guest finds at its first boot.
func checkReport(t *testing.T, r *guestReport) {
	assert.True(t, r.CPUs == 2 && r.MemoryKiB <= 256<<10 && r.MemoryKiB >= 192<<10 && strings.HasSuffix(r.Cmdline, `drover=a,b"c`), "the guest reports %+v", r)
	vda := r.Disks["vda"]
	assert.True(t, vda.Size == 64<<20 && !vda.ReadOnly, "its disk is %+v", vda)
}

// checkFileSystems checks that a guest unmounts its file system when its host shuts down, which a
// machine that is killed does not allow.
func (g *linuxGuest) checkFileSystems(t *testing.T) {
	printed := framework.ReadFile(t, g.d.Host.InstanceOf(g.spec.UID).Machine.File(machine.SerialLogFile))
	var found []string
	for _, state := range regexp.MustCompile(`its file system was ([a-z ]+)`).FindAllStringSubmatch(printed, -1) {
		found = append(found, state[1])
	}
	assert.True(t, slices.Equal(found, []string{"clean", "clean", "not clean"}), "the guest found its disk %q", found)
}

// checkOff checks that the guest ends at the power button, and that nothing leads to it after that.
func (g *linuxGuest) checkOff(t *testing.T) {
	off := g.spec
	off.Power, off.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
	s := reach(t, g.d, off, driver.StateStopped)
	assert.True(t, s.Exit != nil && s.Exit.Code == 0, "it ended with %+v", s.Exit)
	assert.True(t, len(s.Addresses) == 0 && len(s.Ports) == 0, "a machine that is off still has %v and %+v", s.Addresses, s.Ports)
	wantError(t, g.run(t, nil, "echo").err, driver.ErrRetry, "does not run")
	wantError(t, assert.ErrorOf(g.d.Dial(t.Context(), g.spec.UID, 7)), driver.ErrRetry, "does not run")
}

// TestLinuxPanics checks that the end of a guest whose kernel panics is reported as such.
func TestLinuxPanics(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it boots Linux; TestExitsUnsupervised has a guest that reports a panic itself")
	e := newEngine(t)
	g := &linuxGuest{e: e, d: e.open(t), spec: e.linuxSpec(t)}
	g.spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}}
	g.boot(t, 1)
	go func() { _, _ = g.tryAsk(t, "/panic") }() // no answer comes
	end := waitExit(t, g.d, g.spec.UID)
	assert.True(t, end.Reason == "GuestPanicked", "a kernel that panicked ended with %+v", end)
}

// TestKernelFilesInOrder checks that the error is the same each time: one that changes
// between attempts would be reported as new each time.
func TestKernelFilesInOrder(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Image.Kernel = &driver.Kernel{Source: e.images + "/no-kernel", Initrd: e.images + "/no-initrd"}
	for range 20 {
		wantError(t, d.Host.Disks.CheckKernel(spec), driver.ErrRetry, "no-kernel: no such file")
	}
}

// TestKernelFiles checks that a kernel must be in the allowed folders, as images must.
func TestKernelFiles(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
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
			refuses(t, d, spec, c.kind, c.says)
			if err := d.Delete(t.Context(), spec.Target, false); err != nil && !errors.Is(err, driver.ErrNotFound) {
				t.Error(err)
			}
		})
	}
}

var oddUserData = "#cloud-config\npassword: \"'$(reboot)`x` %s \\ é 漢\"\n" + strings.Repeat("# long\n", 20000)

// checkSeed checks that a guest finds exactly what cloud-init reads, and that a change waits for its
// next start. Outside the guest it is not visible.
func (g *linuxGuest) checkSeed(t *testing.T, seed map[string]string) {
	assert.True(t, seed["user-data"] == oddUserData && seed["network-config"] == "version: 2\n",
		"the guest found user-data of %d bytes and the network-config %q", len(seed["user-data"]), seed["network-config"])
	var meta map[string]any
	assert.NoError(t, json.Unmarshal([]byte(seed["meta-data"]), &meta))
	assert.True(t, meta["instance-id"] == string(g.spec.UID) && meta["local-hostname"] == "test-vm" && meta["public-keys"].([]any)[0] == g.spec.SSHKeys[0],
		"the guest found the meta-data %v", meta)
	info, err := os.Stat(g.d.Host.InstanceOf(g.spec.UID).Machine.File(machine.SeedFile))
	assert.True(t, err == nil && info.Mode().Perm() == 0o600, "the disk's mode is %v, %v", info.Mode(), err)
	g.spec.UserData, g.spec.NetworkData, g.spec.SSHKeys = driver.NewSecret("other"), driver.Secret{}, nil
	waiting := reach(t, g.d, g.spec, driver.StateRunning)
	want := []string{"sshAuthorizedKeys", "userData", "networkData"}
	assert.True(t, slices.Equal(waiting.Pending, want), "pending are %v, want %v", waiting.Pending, want)
}

// checkVolumes checks that the guest finds volumes by name, and that they grow while it runs, of
// which it reports the sizes of its next boot.
func (g *linuxGuest) checkVolumes(t *testing.T, r *guestReport) {
	data, copied := g.spec.Volumes[0], g.spec.Volumes[1]
	v := r.Disks["vdb"]
	assert.True(t, v.Serial == data.Name && v.Size == data.SizeBytes && !v.ReadOnly, "the first volume is %+v of %v", v, r.Disks)
	v = r.Disks["vdc"]
	assert.True(t, v.Serial == copied.Name && v.Size == copied.SizeBytes && v.ReadOnly, "the second volume is %+v of %v", v, r.Disks)
	g.spec.Volumes[0].SizeBytes = 16 << 20
	if grown := reach(t, g.d, g.spec, driver.StateRunning); grown.Run != g.server.Run || slices.Contains(grown.Pending, "volumes") {
		t.Errorf("grown it is %+v", grown)
	}
	wantDisk(t, g.d, g.spec, instance.VolumeFile("data"), 16<<20)
	smaller := g.spec
	smaller.Volumes = []driver.Volume{data}
	wantError(t, assert.ErrorOf(g.d.Ensure(t.Context(), smaller)), driver.ErrInvalid, "spec.volumes[0].size (data) is 8Mi", "may only grow")
	grown := r.Disks["vdb"]
	grown.Size = 16 << 20
	r.Disks["vdb"] = grown
}

// TestVolumeStays checks that a volume outlives a run without it.
func TestVolumeStays(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 8 << 20}}
	first := reach(t, d, spec, driver.StateRunning)
	spec.Volumes = nil
	waiting := reach(t, d, spec, driver.StateRunning)
	assert.True(t, slices.Equal(waiting.Pending, []string{"volumes"}), "pending are %v", waiting.Pending)
	spec.RestartRun, spec.StopBy = first.Run, time.Now()
	reach(t, d, spec, driver.StateRunning)
	assert.ErrorIs(t, "a volume that is not named for a while", assert.ErrorOf(os.Stat(d.Host.InstanceOf(spec.UID).Machine.File(instance.VolumeFile("data")))), nil)
}

func TestBadVolumes(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	for name, c := range map[string]struct {
		volumes []driver.Volume
		kind    error
		says    string
	}{
		"name":     {[]driver.Volume{{Name: "../x", SizeBytes: 1 << 20}}, driver.ErrInvalid, "volumes[0].name"},
		"long":     {[]driver.Volume{{Name: strings.Repeat("x", 21), SizeBytes: 1 << 20}}, driver.ErrInvalid, "volumes[0].name"},
		"reserved": {[]driver.Volume{{Name: launch.SeedSerial, SizeBytes: 1 << 20}}, driver.ErrInvalid, launch.SeedSerial},
		"small":    {[]driver.Volume{{Name: "x", SizeBytes: 1 << 20, Image: &driver.Image{Source: e.big(t)}}}, driver.ErrInvalid, "needs 5Mi"},
		"missing":  {[]driver.Volume{{Name: "x", SizeBytes: 1 << 20, Image: &driver.Image{Source: e.images + "/none"}}}, driver.ErrRetry, "no such file"},
		"nowhere": {
			[]driver.Volume{{Name: "x", SizeBytes: 1 << 20}, {Name: "y", SizeBytes: 1 << 20, Image: &driver.Image{Source: "nginx"}}},
			driver.ErrInvalid,
			`spec.volumes[1].source.image.source is "nginx": it must be the absolute path of a file, with or without the prefix file://, or begin with cloud://, http://`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := e.spec()
			spec.Volumes = c.volumes
			refuses(t, d, spec, c.kind, c.says)
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

// memoryGroups are where control groups with memory limits are, in versions 1 and 2, and the
// file of the limit.
var memoryGroups = map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}

// limitMemory moves a process to a new control group, and limits how much it may use in addition
// to its present memory. It reports whether such a group can be made here.
func limitMemory(t *testing.T, pid int, bytes int) bool {
	t.Helper()
	for top, limit := range memoryGroups {
		group := filepath.Join(top, "drover-test-"+strconv.Itoa(pid))
		if os.Mkdir(group, 0o700) != nil {
			continue
		}
		t.Cleanup(func() { assert.NoError(t, os.Remove(group)) })
		// A folder that is not a control group lacks such a file, and must not get one.
		if f, err := os.OpenFile(filepath.Join(group, limit), os.O_WRONLY, 0); err == nil {
			_, err = f.WriteString(strconv.Itoa(bytes))
			assert.NoError(t, errors.Join(err, f.Close(), os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)))
			return true
		}
	}
	return false
}

// runOutOfMemory has the kernel end a QEMU because memory runs out, or ends it itself where no limit can
// be set. The end is reported as the end of a killed process, and the server has one process before and
// after its next start.
func (g *linuxGuest) runOutOfMemory(t *testing.T) {
	t.Helper()
	if pid := g.d.Host.InstanceOf(g.spec.UID).Machine.PID(); limitMemory(t, pid, 32<<20) {
		_, err := g.tryAsk(t, "/eat?mib=120")
		assert.True(t, err != nil, "the guest has got more memory than there is")
	} else {
		t.Logf("no control group that limits memory can be made here: one of %v must be writable", memoryGroups)
		assert.NoError(t, proc.Kill(t.Context(), pid, func(int) bool { return true }))
	}
	end := waitExit(t, g.d, g.spec.UID)
	assert.True(t, end.Reason == exits.ReasonKilled && end.Code == exits.CodeKilled, "it ended with %+v", end)
	again := reach(t, g.d, g.spec, driver.StateRunning)
	assert.True(t, again.Run != g.server.Run && again.ID == g.server.ID, "started again it is %+v", again)
	processes := machines(g.d, []types.UID{g.spec.UID})
	assert.True(t, len(processes[g.spec.UID]) == 1, "it has the processes %v", processes)
}

// checkMemory checks that memory counts as the guest sees it: it is less again after a program has
// freed some, which the host never sees.
func (g *linuxGuest) checkMemory(t *testing.T) {
	const eaten = 120 << 20
	for _, mib := range []int{eaten >> 20, 0} {
		g.ask(t, fmt.Sprintf("/eat?mib=%d", mib))
		assert.Eventually(t, fmt.Sprintf("the guest uses %d MiB and a little", mib), func(t testing.TB) error {
			samples, err := g.d.Usage(t.Context(), g.spec.UID)
			assert.NoError(t, err)
			used := samples[0].MemoryBytes
			return assert.ErrorUnless(used != 0 && (used > eaten) == (mib > 0), "it uses %d MiB", used>>20)
		})
	}
	process, err := proc.ReadUsage(g.d.Host.InstanceOf(g.spec.UID).Machine.PID())
	assert.NoError(t, err)
	assert.True(t, process.MemoryBytes >= eaten, "QEMU itself gave memory back, so that this test shows nothing: it has %d MiB", process.MemoryBytes>>20)
}
