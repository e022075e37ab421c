// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestAccelerator checks that KVM is chosen where its device opens and a guest runs under
// it in time, and nowhere else. The choice holds as long as the controller runs.
func TestAccelerator(t *testing.T) {
	t.Parallel()
	const patient = time.Hour
	opens := filepath.Join(t.TempDir(), "kvm")
	assert.NoError(t, os.WriteFile(opens, nil, 0o600))
	for name, c := range map[string]struct {
		body   string
		within time.Duration
		want   string
		says   string
	}{
		"a guest runs":   {"exit 85", patient, AccelKVM, "a probe guest has confirmed"},
		"a guest hangs":  {"exec sleep 60", time.Millisecond, AccelTCG, "the probe guest did not finish under KVM within 1ms"},
		"QEMU refuses":   {"echo no KVM; exit 1", patient, AccelTCG, "no KVM"},
		"it ends early":  {"exit 0", patient, AccelTCG, "the probe guest failed under KVM"},
		"another answer": {"exit 3", patient, AccelTCG, "exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ran := filepath.Join(t.TempDir(), "ran")
			log := &logs{}
			a := NewAccelerator(AccelAuto, ownProgram(framework.QEMUScript(t, "echo $* >> "+ran+"; "+c.body)), clock.RealClock{}, log.logger())
			a.Device, a.probeWithin = opens, c.within
			for range 2 {
				got, err := a.Choose(t.Context())
				assert.True(t, err == nil && got == c.want, "got %q and error %v, want %q", got, err, c.want)
			}
			content, err := os.ReadFile(ran)
			assert.True(t, c.within != patient || (err == nil && strings.Count(string(content), "\n") == 1 && strings.Contains(string(content), "-accel kvm")),
				"guests ran: %q, %v, want one under KVM", content, err)
			said := log.lines()
			assert.True(t, len(said) == 1 && strings.Contains(said[0], c.says), "it said %q, want %q", said, c.says)
		})
	}
}

// TestAcceleratorAgain checks that a KVM device which could not be opened is tried again
// after a while, and that the same result is not logged twice.
func TestAcceleratorAgain(t *testing.T) {
	t.Parallel()
	now, log := framework.NewFakeClock(time.Unix(0, 0)), &logs{}
	a := NewAccelerator(AccelAuto, ownProgram(framework.QEMUScript(t, "exit 85")), now, log.logger())
	a.Device, a.probeWithin = filepath.Join(t.TempDir(), "kvm"), time.Hour
	want := func(want string) {
		t.Helper()
		got, err := a.Choose(t.Context())
		assert.True(t, err == nil && got == want, "got %q, %v, want %s", got, err, want)
	}
	want(AccelTCG)
	now.Step(openAgain)
	want(AccelTCG)
	assert.NoError(t, os.WriteFile(a.Device, nil, 0o600))
	want(AccelTCG)
	now.Step(openAgain)
	want(AccelKVM)
	assert.NoError(t, os.Remove(a.Device))
	now.Step(openAgain)
	want(AccelKVM)
	said := log.lines()
	assert.True(t, len(said) == 2 && strings.Contains(said[0], "no such file"), "it said %q", said)
}

// TestAcceleratorOfABusyHost checks that a guest which did not run in time is tried again
// a few times, since a booting host is busy.
func TestAcceleratorOfABusyHost(t *testing.T) {
	t.Parallel()
	now, ready := framework.NewFakeClock(time.Unix(0, 0)), filepath.Join(t.TempDir(), "ready")
	a := NewAccelerator(AccelAuto, ownProgram(framework.QEMUScript(t, "[ -e "+ready+" ] && exit 85; exec sleep 60")), now, logr.Discard())
	a.Device, a.probeWithin = filepath.Join(t.TempDir(), "kvm"), 10*time.Millisecond
	assert.NoError(t, os.WriteFile(a.Device, nil, 0o600))
	want := func(want string) {
		t.Helper()
		got, err := a.Choose(t.Context())
		assert.True(t, err == nil && got == want, "got %q, %v, want %s", got, err, want)
	}
	want(AccelTCG)
	assert.NoError(t, os.WriteFile(ready, nil, 0o600))
	a.probeWithin = time.Hour
	want(AccelTCG)
	now.Step(slowAgain)
	want(AccelKVM)
	now.Step(time.Hour)
	assert.NoError(t, os.Remove(ready))
	want(AccelKVM)
}

// TestProbeGuest checks that the guest of the probe does what the probe waits for.
func TestProbeGuest(t *testing.T) {
	t.Parallel()
	framework.QEMUBinary(t)
	program := framework.QEMUScript(t, `for a; do shift; case $a in kvm) a=tcg;; host) a=max;; esac; set -- "$@" "$a"; done; exec qemu-system-x86_64 "$@"`)
	a := NewAccelerator(AccelAuto, ownProgram(program), clock.RealClock{}, logr.Discard())
	a.Device, a.probeWithin = os.DevNull, time.Hour
	got, err := a.Choose(t.Context())
	assert.True(t, err == nil && got == AccelKVM, "got %s, %v", got, err)
}

// TestProbeChoosesNothing checks that a probe by hand reports what Choose would find, and
// leaves the choice open.
func TestProbeChoosesNothing(t *testing.T) {
	t.Parallel()
	log := &logs{}
	a := NewAccelerator(AccelAuto, ownProgram(framework.QEMUScript(t, "exit 85")), clock.RealClock{}, log.logger())
	a.Device, a.probeWithin = filepath.Join(t.TempDir(), "kvm"), time.Hour
	assert.ErrorIs(t, "without the device", a.Probe(t.Context()), fs.ErrNotExist)
	assert.NoError(t, os.WriteFile(a.Device, nil, 0o600))
	assert.NoError(t, a.Probe(t.Context()))
	a.program = ownProgram(framework.QEMUScript(t, "echo no KVM; exit 1"))
	assert.ErrorSays(t, "of a QEMU that refuses", a.Probe(t.Context()), "no KVM")
	assert.True(t, a.chosen == "" && len(log.lines()) == 0, "chose %q and said %q", a.chosen, log.lines())
}

// TestProbeGuestSource checks that the source of the probe's guest assembles to it.
func TestProbeGuestSource(t *testing.T) {
	t.Parallel()
	object, image := filepath.Join(t.TempDir(), "probe.o"), filepath.Join(t.TempDir(), "probe.img")
	for _, command := range [][]string{
		{"as", "-o", object, "../../hack/guest/probe.s"},
		{"ld", "-m", "elf_x86_64", "-Ttext", "0x7c00", "--oformat", "binary", "-o", image, object},
	} {
		out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
		assert.Require(t, err == nil, "%v: %v\n%s", command, err, out)
	}
	content := framework.ReadFile(t, image)
	assert.True(t, content == string(probeGuest), "probe.bin has %d bytes that are not hack/guest/probe.s: copy %s there", len(probeGuest), image)
}

// logs records what is logged.
type logs struct {
	mu   sync.Mutex
	said []string
}

func (l *logs) logger() logr.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.said = append(l.said, args)
	}, funcr.Options{})
}

func (l *logs) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.said)
}

// ownProgram returns a QEMU whose machines have the tests' user.
func ownProgram(name string) *Program {
	return &Program{Name: name, Users: &launch.Users{}, Log: logr.Discard()}
}
