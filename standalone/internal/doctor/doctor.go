// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor checks a host and the installation of Drover on it. It does not change
// anything: it does not create files, start engines or take locks. It works without root,
// without a data dir, and beside a running Drover.
//
// Start with table. Each check has a function that gathers facts, with the same code that
// Drover uses, and a pure function that judges the facts.
package doctor

import (
	"context"
	"os"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/standalone/internal/runstate"
)

// Settings are the flags of `drover up` that the checks depend on.
type Settings struct {
	BindAddress string
	// Port is 0 unless one was requested.
	Port     int
	VMDriver string
	QEMU     qemu.Options
	// Addresses are the other addresses that drover up listens on, keyed by their flags.
	Addresses map[string]string
	// WithoutController is set if Drover runs only the API.
	WithoutController bool
}

// Host is the host that the checks examine.
type Host struct {
	Settings

	Layout datadir.Layout
	// Version is the version of this program.
	Version string
	Clock   clock.WithTicker
	// PID is the process of the Drover that holds the data dir, or 0 if there is none. PIDErr says
	// why the process is unknown.
	PID    int
	PIDErr error
	// State is the state that this process, or the last process, has written. It is nil if it is
	// unknown, and StateErr says why.
	State    *runstate.State
	StateErr error
	// Known are the engines that this installation has used, as far as they can be read.
	Known []engines.Engine
	// User is the user whose rights Drover has.
	User User
	// ByRoot is set if root has started the command, even if it now runs as another user.
	ByRoot bool
}

// NewHost returns the host with a data dir, which need not exist. The caller sets Settings.
func NewHost(layout datadir.Layout, version string, c clock.WithTicker) *Host {
	h, err := datadir.Within(findings.DefaultTimeout, "reading "+string(layout), func() (*Host, error) { return readHost(layout, version, c), nil })
	if err != nil {
		return &Host{Layout: layout, Version: version, Clock: c, PIDErr: err, StateErr: err, User: callingUser()}
	}
	return h
}

func readHost(layout datadir.Layout, version string, c clock.WithTicker) *Host {
	h := &Host{Layout: layout, Version: version, Clock: c}
	h.PID, h.PIDErr = layout.Holder()
	h.State, h.StateErr = runstate.Read(layout.RunState())
	if h.State != nil && h.PID != 0 && h.State.PID != h.PID {
		h.State = nil // the state of the previous run, while the present run is starting
	}
	h.Known, _ = engines.Known(layout.Engines()) // another check reports the error
	h.User = findUser(h.PID, string(layout))
	return h
}

// isDroverRunning reports whether a Drover runs on the data dir.
func (h *Host) isDroverRunning() bool { return h.PID != 0 }

// commandLine returns a command line for this data dir, with sudo if the caller needs it.
func (h *Host) commandLine(verb string) string {
	line, defaultDir := "sudo drover "+verb, datadir.Default(func(string) string { return "" }, 0)
	if h.User.isCaller() && !h.User.isRoot() {
		line, defaultDir = "drover "+verb, datadir.Default(os.Getenv, h.User.ID)
	}
	if string(h.Layout) != defaultDir {
		line += " --data-dir " + printable.ShellWord(string(h.Layout))
	}
	return line
}

// Headings of the findings.
const (
	groupHost         = "Host"
	groupEngines      = "Engines"
	groupInstallation = "Installation"
)

// check is a row of the table.
type check struct {
	group, name string
	timeout     time.Duration // zero means the default
	// isCheap is set if the check neither runs a program nor calls an engine, so that drover
	// status can include it.
	isCheap bool
	run     func(ctx context.Context, h *Host) []findings.Finding
}

// qemuTimeout is how long a check that runs QEMU may take.
const qemuTimeout = 25 * time.Second

// table has all checks, in the order in which they are shown.
var table = []check{
	{group: groupHost, name: "kvm", timeout: qemuTimeout, run: gatherAndJudge(gatherKVM, judgeKVM)},
	{group: groupHost, name: "cgroup", run: gatherAndJudge(gatherCgroup, judgeCgroup)},
	{group: groupHost, name: "confinement", timeout: qemuTimeout, run: gatherAndJudge(gatherConfinement, judgeConfinement)},
	{group: groupHost, name: "inotify", isCheap: true, run: gatherAndJudge(gatherInotify, judgeInotify)},
	{group: groupHost, name: "machine-user", isCheap: true, run: gatherAndJudge(gatherMachineUser, judgeMachineUser)},
	{group: groupEngines, name: "qemu", timeout: qemuTimeout, run: gatherAndJudge(gatherQEMU, judgeQEMU)},
	{group: groupEngines, name: "docker", timeout: 2 * findings.DefaultTimeout, run: gatherAndJudge(gatherDocker, judgeDocker)},
	{group: groupInstallation, name: "data-dir", isCheap: true, run: gatherAndJudge(gatherDataDir, judgeDataDir)},
	{group: groupInstallation, name: "files", timeout: 2 * findings.DefaultTimeout, run: gatherAndJudge(gatherFiles, judgeFiles)},
	{group: groupInstallation, name: "disk", isCheap: true, run: gatherAndJudge(gatherDisks, judgeDisks)},
	{group: groupInstallation, name: "store", isCheap: true, run: gatherAndJudge(gatherStore, judgeStore)},
	{group: groupInstallation, name: "ports", run: gatherAndJudge(gatherPorts, judgePorts)},
	{group: groupInstallation, name: "served", timeout: 2 * findings.DefaultTimeout, run: gatherAndJudge(gatherServed, judgeServed)},
}

// gatherAndJudge returns a check that gathers facts and then judges them.
func gatherAndJudge[F any](gather func(context.Context, *Host) F, judge func(F) []findings.Finding) func(context.Context, *Host) []findings.Finding {
	return func(ctx context.Context, h *Host) []findings.Finding { return judge(gather(ctx, h)) }
}

// Examine runs all checks.
func (h *Host) Examine(ctx context.Context) []findings.Finding {
	return findings.Run(ctx, h.selectChecks(func(check) bool { return true }))
}

// Warnings runs the cheap checks and returns the warnings and errors.
func (h *Host) Warnings(ctx context.Context) []findings.Finding {
	var found []findings.Finding
	for _, f := range findings.Run(ctx, h.selectChecks(func(c check) bool { return c.isCheap })) {
		if f.Level == findings.LevelWarning || f.Level == findings.LevelError {
			found = append(found, f)
		}
	}
	return found
}

func (h *Host) selectChecks(isSelected func(check) bool) []findings.Check {
	var all []findings.Check
	for _, c := range table {
		if isSelected(c) {
			all = append(all, findings.Check{
				Group: c.group, Name: c.name, Timeout: c.timeout,
				Run: func(ctx context.Context) []findings.Finding { return c.run(ctx, h) },
			})
		}
	}
	return all
}

// oneFinding returns a single finding as a list.
func oneFinding(f findings.Finding) []findings.Finding { return []findings.Finding{f} }
