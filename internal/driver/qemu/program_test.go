// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// commandLine returns the command line of a server's QEMU.
func commandLine(t *testing.T, d *Driver, spec driver.ServerSpec) []string {
	t.Helper()
	line := framework.ReadFile(t, proc.Path(d.Host.InstanceOf(spec.UID).Machine.PID(), "cmdline"))
	return strings.Split(strings.TrimSuffix(line, "\x00"), "\x00")
}

// pinned returns the machine type of a running server.
func pinned(t *testing.T, d *Driver, spec driver.ServerSpec) string {
	t.Helper()
	args := commandLine(t, d, spec)
	name, _, _ := strings.Cut(args[slices.Index(args, "-machine")+1], ",")
	return name
}

// edit changes a server's record, to look like one of another version.
func edit(t *testing.T, d *Driver, spec driver.ServerSpec, change func(map[string]any)) {
	t.Helper()
	framework.EditJSON(t, d.Host.InstanceOf(spec.UID).Machine.File(instance.RecordFile), func(r *map[string]any) { change(*r) })
}

// older returns a QEMU whose newest machine type differs from that of the usual one.
func older(t *testing.T) string {
	t.Helper()
	return framework.QEMUScript(t, `case $1 in -machine) echo 'q35  PC (alias of pc-q35-6.2)'; echo 'pc-q35-6.2  PC';; *) exec qemu-system-x86_64 "$@";; esac`)
}

// TestMachineType checks that a server keeps the machine type that it was made with,
// whatever QEMU is installed later.
func TestMachineType(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	spec := e.spec()
	off(t, e.openBinary(t, older(t)), spec) // made, and never started
	d := e.open(t)
	reach(t, d, spec, driver.StateRunning)
	assert.Equal(t, "under a newer QEMU it is a", pinned(t, d, spec), "pc-q35-6.2")
	off(t, d, spec)
}

// TestMustUnderstand checks that the record of a later version is refused if this one would misunderstand it, that what
// may be ignored survives a rewrite, and that the machine of a record without an identity keeps its identity.
func TestMustUnderstand(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	off(t, d, spec)
	edit(t, d, spec, func(r map[string]any) { r["mustUnderstand"] = map[string]string{"encryption": "9.9.9"} })
	for what, err := range map[string]error{"Ensure": assert.ErrorOf(d.Ensure(t.Context(), spec)), "Delete": d.Delete(t.Context(), spec.Target, false)} {
		assert.ErrorSays(t, what, err, `server.json: mustUnderstand has "encryption", which Drover 9.9.9 and later versions know`)
	}
	made, err := d.Host.InstanceOf(spec.UID).Load()
	assert.True(t, err != nil, "it is read: %+v", made.Record)
	edit(t, d, spec, func(r map[string]any) {
		assert.True(t, r["uuid"] != string(spec.UID) && r["mac"] != launch.DeriveMAC(string(spec.UID)), "the identity follows from the UID: %v", r)
		delete(r, "mustUnderstand")
		delete(r, "uuid")
		delete(r, "mac")
		r["later"] = map[string]any{"kept": true}
	})
	reach(t, d, spec, driver.StateRunning)
	assert.True(t, proc.HasOption(d.Host.InstanceOf(spec.UID).Machine.PID(), "-uuid", string(spec.UID)), "the machine has another UUID")
	edit(t, d, spec, func(r map[string]any) {
		assert.True(t, r["uuid"] == string(spec.UID) && r["mac"] == launch.DeriveMAC(string(spec.UID)) && r["later"] != nil, "the record is %v", r)
	})
	gone(t, d, spec)
}

// TestMachineTypeUnavailable checks that a machine whose type the QEMU lacks is left as
// it is, running or off, and that the error says what it needs.
func TestMachineTypeUnavailable(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	first := reach(t, d, spec, driver.StateRunning)
	edit(t, d, spec, func(r map[string]any) { r["machineType"] = "pc-q35-99.9" })
	says := []string{"made with machine type pc-q35-99.9", "lacks", driver.ReasonMachineTypeUnavailable}
	restart := spec
	restart.RestartRun = first.Run
	refuses(t, d, restart, driver.ErrRetry, says...)
	if listed, err := d.List(t.Context(), spec.UID); err != nil || listed[0].State != driver.StateRunning || listed[0].Run != first.Run {
		t.Errorf("it is %+v, %v", listed, err)
	}
	off(t, d, spec)
	refuses(t, d, spec, driver.ErrRetry, says...)
}

// TestAcceleratorReported checks that the accelerator of a running machine is reported,
// also by another controller.
func TestAcceleratorReported(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	assert.Equal(t, "Ensure reports", reach(t, d, spec, driver.StateRunning).Accelerator, driver.AccelTCG)
	listed := func() driver.Server {
		t.Helper()
		all, err := e.open(t).List(t.Context(), spec.UID)
		assert.NoError(t, err)
		return all[0]
	}
	assert.Equal(t, "List reports", listed().Accelerator, driver.AccelTCG)
	assert.Equal(t, "off it runs under", off(t, d, spec).Accelerator, "")
}

// TestOOMScore checks that the kernel ends a machine before its supervisor, and that before Drover, when memory runs out.
func TestOOMScore(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	own := max(oomScore(t, os.Getpid()), 0)
	m := d.Host.InstanceOf(spec.UID)
	assert.Equal(t, "the score of QEMU", oomScore(t, m.Machine.PID()), min(own+300, 1000))
	assert.Equal(t, "the score of the supervisor", oomScore(t, supervisorOf(t, m).PID), min(own+100, 1000))
}

// TestOutput checks that the output of a crashed QEMU is reported, also by a later
// controller, and that its log is kept beside that of the next run.
func TestOutput(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.openBinary(t, framework.QEMUScript(t, `case $1 in -nodefaults) printf '%2000s' | tr ' ' x >&2; printf 'the \033[1mlast\t words\377 of it\nand more\n' >&2;; esac; exec qemu-system-x86_64 "$@"`))
	spec := e.spec()
	boots(t, d, spec, "drover guest 1 A")
	h := d.Host.InstanceOf(spec.UID)
	assert.NoError(t, h.Machine.Kill(t.Context()))
	end := waitExit(t, e.open(t), spec.UID)
	assert.True(t, end.Reason == exits.ReasonKilled && strings.HasSuffix(end.Output, "xthe [1mlast  words of it; and more") && len(end.Output) == exits.OutputTail,
		"it ended with %+v", end)
	assert.True(t, !strings.Contains(end.Output, "drover guest"), "it has the output of the guest")
	again := waitExit(t, d, spec.UID)
	assert.True(t, again.Output == end.Output && again.At.Equal(end.At), "it ended with %+v, and then with %+v", end, again)
	quiet := e.open(t)
	waitExit(t, quiet, spec.UID)
	reach(t, quiet, spec, driver.StateRunning)
	kept, err := os.ReadFile(h.Machine.File(machine.LogFile + machine.OldLog))
	assert.True(t, err == nil && bytes.HasSuffix(kept, []byte("and more\n")), "of the run before is left %.100q, %v", kept, err)
	now, err := os.ReadFile(h.Machine.File(machine.LogFile))
	assert.True(t, err == nil && !bytes.Contains(now, []byte("last")), "the log of the run has %.100q, %v", now, err)
	s := off(t, quiet, spec)
	assert.True(t, s.Exit != nil && s.Exit.Output == "", "shut down it ended with %+v", s.Exit)
}

// TestFailedStartsKeepTheLog checks that failed retries and an interrupted start do not
// replace the log of the run that crashed.
func TestFailedStartsKeepTheLog(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.openBinary(t, framework.QEMUScript(t, `case $1 in -nodefaults) echo 'why it crashed' >&2;; esac; exec qemu-system-x86_64 "$@"`))
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	h := d.Host.InstanceOf(spec.UID)
	assert.NoError(t, h.Machine.Kill(t.Context()))
	broken := e.openBinary(t, fails(t, "echo 'no start'; exit 1"))
	waitExit(t, broken, spec.UID)
	for range 3 {
		refuses(t, broken, spec, driver.ErrRetry, "no start")
	}
	has := func(name, want string) {
		t.Helper()
		content, err := os.ReadFile(h.Machine.File(name))
		assert.True(t, err == nil && strings.Contains(string(content), want), "%s has %q, %v, want %q", name, content, err, want)
	}
	has(machine.LogFile+machine.OldLog, "why it crashed")
	has(machine.LogFile+machine.FailedLog, "no start")

	assert.NoError(t, os.WriteFile(h.Machine.File(machine.LogFile), []byte("cut off"), 0o600))
	rewind(t, h)
	d = e.open(t)
	reach(t, d, spec, driver.StateRunning)
	has(machine.LogFile+machine.OldLog, "why it crashed")
	has(machine.LogFile+machine.FailedLog, "cut off")
	has(machine.LogFile, "")
}

func oomScore(t *testing.T, pid int) int {
	t.Helper()
	text := framework.ReadFile(t, proc.Path(pid, "oom_score_adj"))
	score, err := strconv.Atoi(strings.TrimSpace(text))
	assert.NoError(t, err)
	return score
}
