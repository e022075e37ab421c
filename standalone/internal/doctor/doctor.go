// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor checks a host and the installation of Drover on it. It changes nothing: it
// makes no file, starts no engine and takes no lock. It works without root, without a data
// dir, and beside a Drover that runs.
//
// Start with table. Each check has a function that gathers facts, by the code that Drover
// itself uses for them, and a pure one that judges them.
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
	// Addresses are further ones that are listened on, by the flag that names them.
	Addresses map[string]string
	// WithoutController is set if only the API runs.
	WithoutController bool
}

// Host is the host that the checks examine.
type Host struct {
	Settings

	Layout datadir.Layout
	// Version is the version of this program.
	Version string
	Clock   clock.WithTicker
	// PID is the process of the Drover that holds the data dir, 0 for none, and State its
	// description of itself, or else the one of the last; nil if that is not known. The errors
	// say why.
	PID      int
	PIDErr   error
	State    *runstate.State
	StateErr error
	// Known are the engines that this installation has used, as far as they can be read.
	Known []engines.Engine
	// User is the user whose rights Drover has.
	User User
	// ByRoot is set if root has started the command, whoever it is by now.
	ByRoot bool
}

// NewHost returns the host with a data dir, which need not exist. Settings are set next.
func NewHost(layout datadir.Layout, version string, c clock.WithTicker) *Host {
	h, err := datadir.Within(findings.DefaultWithin, "reading "+string(layout), func() (*Host, error) { return readHost(layout, version, c), nil })
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
		h.State = nil // of the run before, whose successor is starting
	}
	h.Known, _ = engines.Known(layout.Engines()) // another check reports the error
	h.User = findUser(h.PID, string(layout))
	return h
}

// runs reports whether a Drover runs here.
func (h *Host) runs() bool { return h.PID != 0 }

// commandLine returns a command line that acts on this data dir with the rights that it takes.
func (h *Host) commandLine(verb string) string {
	line, usual := "sudo drover "+verb, datadir.Default(func(string) string { return "" }, 0)
	if h.User.isCaller() && !h.User.isRoot() {
		line, usual = "drover "+verb, datadir.Default(os.Getenv, h.User.ID)
	}
	if string(h.Layout) != usual {
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
	within      time.Duration // zero means the default
	// cheap is set if the check runs no program and calls no engine, so that status can
	// include it.
	cheap bool
	run   func(ctx context.Context, h *Host) []findings.Finding
}

// slow is how long a check may take that runs QEMU.
const slow = 25 * time.Second

// table has all checks, in the order in which they are shown.
var table = []check{
	{group: groupHost, name: "kvm", within: slow, run: gatherAndJudge(gatherKVM, judgeKVM)},
	{group: groupHost, name: "cgroup", run: gatherAndJudge(gatherCgroup, judgeCgroup)},
	{group: groupHost, name: "confinement", within: slow, run: gatherAndJudge(gatherConfinement, judgeConfinement)},
	{group: groupHost, name: "inotify", cheap: true, run: gatherAndJudge(gatherInotify, judgeInotify)},
	{group: groupHost, name: "machine-user", cheap: true, run: gatherAndJudge(gatherMachineUser, judgeMachineUser)},
	{group: groupEngines, name: "qemu", within: slow, run: gatherAndJudge(gatherQEMU, judgeQEMU)},
	{group: groupEngines, name: "docker", within: 2 * findings.DefaultWithin, run: gatherAndJudge(gatherDocker, judgeDocker)},
	{group: groupInstallation, name: "data-dir", cheap: true, run: gatherAndJudge(gatherDataDir, judgeDataDir)},
	{group: groupInstallation, name: "files", within: 2 * findings.DefaultWithin, run: gatherAndJudge(gatherFiles, judgeFiles)},
	{group: groupInstallation, name: "disk", cheap: true, run: gatherAndJudge(gatherDisks, judgeDisks)},
	{group: groupInstallation, name: "store", cheap: true, run: gatherAndJudge(gatherStore, judgeStore)},
	{group: groupInstallation, name: "ports", run: gatherAndJudge(gatherPorts, judgePorts)},
	{group: groupInstallation, name: "served", within: 2 * findings.DefaultWithin, run: gatherAndJudge(gatherServed, judgeServed)},
}

// gatherAndJudge returns a check of facts that are gathered and then judged.
func gatherAndJudge[F any](gather func(context.Context, *Host) F, judge func(F) []findings.Finding) func(context.Context, *Host) []findings.Finding {
	return func(ctx context.Context, h *Host) []findings.Finding { return judge(gather(ctx, h)) }
}

// Examine runs all checks.
func (h *Host) Examine(ctx context.Context) []findings.Finding {
	return findings.Run(ctx, h.selectChecks(func(check) bool { return true }))
}

// Warnings runs the cheap checks and returns what is not well.
func (h *Host) Warnings(ctx context.Context) []findings.Finding {
	var found []findings.Finding
	for _, f := range findings.Run(ctx, h.selectChecks(func(c check) bool { return c.cheap })) {
		if f.Level == findings.LevelWarning || f.Level == findings.LevelError {
			found = append(found, f)
		}
	}
	return found
}

func (h *Host) selectChecks(wanted func(check) bool) []findings.Check {
	var all []findings.Check
	for _, c := range table {
		if wanted(c) {
			all = append(all, findings.Check{
				Group: c.group, Name: c.name, Within: c.within,
				Run: func(ctx context.Context) []findings.Finding { return c.run(ctx, h) },
			})
		}
	}
	return all
}

// oneFinding returns a single finding as a list.
func oneFinding(f findings.Finding) []findings.Finding { return []findings.Finding{f} }
