// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"k8s.io/apimachinery/pkg/util/duration"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/standalone/internal/port"
	"cloudnative.tw/drover/standalone/internal/runstate"
)

// processFacts are about the Drover that runs, or ran last.
type processFacts struct {
	pid      int
	err      error // why it is not known whether one runs
	state    *runstate.State
	stateErr error
	ready    bool
	version  string // of this program
	now      time.Time
	exists   bool // there is a data dir
}

func gatherProcess(_ context.Context, h *Host) processFacts {
	_, notReady := os.Stat(h.Layout.Ready())
	exists, _ := h.Layout.Exists()
	return processFacts{
		pid: h.PID, err: h.PIDErr, state: h.State, stateErr: h.StateErr, ready: notReady == nil,
		version: h.Version, now: h.Clock.Now(), exists: exists,
	}
}

// startTakes is how long a start may take on a slow host.
const startTakes = 2 * time.Minute

func judgeProcess(f processFacts) []findings.Finding {
	switch {
	case errors.Is(f.err, fs.ErrPermission):
		return one(findings.Note("%v", f.err).Means("Whether Drover runs is unknown."))
	case f.err != nil:
		return one(findings.Warning("%v", f.err).Means("Whether Drover runs is unknown."))
	case f.pid == 0:
		return f.judgeStopped()
	}
	return f.judgeRunning()
}

func (f processFacts) judgeStopped() []findings.Finding {
	const text = "no Drover runs with this data dir"
	switch {
	case !f.exists:
		return nil
	case errors.Is(f.stateErr, fs.ErrPermission):
		return one(findings.Note(text))
	case f.stateErr != nil:
		return one(findings.Note("%s; %v", text, f.stateErr).Means("The next start writes it again."))
	case f.state == nil:
		return one(findings.Note(text))
	case f.state.Failure != "":
		return one(findings.Warning("%s; the last run ended after a failure: %s", text, f.state.Failure).
			Means("Servers go on running. VMs are not looked after until it runs again.").FixedBy("look into the log, then start it"))
	case f.state.EndedAt.IsZero():
		return one(findings.Note("%s; the last run, process %d, was killed or the host went down", text, f.state.PID).
			Means("Nothing that was acknowledged is lost. The next start completes unfinished steps."))
	}
	return one(findings.Note("%s; it was stopped %s ago", text, duration.HumanDuration(f.now.Sub(f.state.EndedAt))).
		Means("Servers go on running. VMs are not looked after until it runs again."))
}

func (f processFacts) judgeRunning() []findings.Finding {
	text := fmt.Sprintf("Drover runs as process %d", f.pid)
	if f.state == nil {
		if f.ready {
			return one(findings.OK("%s, and is ready", text))
		}
		return one(findings.Note("%s, and is not ready", text))
	}
	since := f.now.Sub(f.state.StartedAt)
	text = fmt.Sprintf("Drover %s runs as process %d, for %s", f.state.Version, f.pid, duration.HumanDuration(since))
	switch {
	case !f.ready && since > startTakes:
		return one(findings.Error("%s, and is not ready: %s", text, f.unready()).
			Means("VMs are not looked after.").FixedBy("look into the log; a restart of Drover leaves servers running"))
	case !f.ready:
		return one(findings.Note("%s, and is not ready yet: %s", text, f.unready()))
	case f.state.Version != f.version:
		return one(findings.Note("%s; this program is %s", text, f.version).
			Means("The version that is installed runs after the next start of Drover. Servers go on running meanwhile.").
			FixedByCommand("sudo systemctl restart drover"))
	}
	return one(findings.OK("%s", text))
}

// unready names the components that are not ready.
func (f processFacts) unready() string {
	var names []string
	for _, c := range f.state.Components {
		if c.State != runstate.StateReady && c.State != runstate.StateWaiting {
			names = append(names, c.Name+" is "+c.State)
		}
	}
	if len(names) == 0 {
		return "its components are"
	}
	return strings.Join(names, ", ")
}

// portFacts are about an address that Drover listens on, or would.
type portFacts struct {
	flag    string
	address string
	port    int
	// first is set for the port that a first start prefers, and may do without.
	first bool
	runs  bool
	ready bool
	pid   int // of Drover
	taken bool
	by    int    // the process that listens, 0 if that is not known
	name  string // of its program
	move  string // the command that takes another port
}

type portsFacts struct {
	ports []portFacts
	err   error
}

func gatherPorts(ctx context.Context, h *Host) portsFacts {
	f := portsFacts{}
	listeners, err := findListeners()
	if _, kept := h.Layout.Port(); err == nil && errors.Is(kept, fs.ErrPermission) {
		err = kept // it may be another one than the flags say
	}
	if err != nil {
		return portsFacts{err: err}
	}
	_, notReady := os.Stat(h.Layout.Ready())
	for _, p := range h.expectedPorts() {
		p.runs, p.ready, p.pid, p.move = h.runs(), notReady == nil, h.PID, h.command("up --port 0")
		for _, l := range listeners {
			if l.covers(p) {
				p.taken = true
				p.by, p.name = findSocketOwner(ctx, l.inode)
			}
		}
		f.ports = append(f.ports, p)
	}
	return f
}

// expectedPorts returns the addresses that `drover up` listens on. The port of the API is
// kept between starts.
func (h *Host) expectedPorts() []portFacts {
	kept, err := h.Layout.Port()
	api := portFacts{flag: "--port", address: h.BindAddress, port: h.Port}
	if err == nil && kept != 0 && (api.port == 0 || h.runs()) {
		api.port = kept
	}
	if api.port == 0 {
		api.port, api.first = port.Default, true
	}
	all := []portFacts{api}
	for flag, address := range h.Addresses {
		host, number, err := net.SplitHostPort(address)
		n, err2 := strconv.Atoi(number)
		if errors.Join(err, err2) == nil {
			all = append(all, portFacts{flag: flag, address: host, port: n})
		}
	}
	slices.SortStableFunc(all[1:], func(a, b portFacts) int { return strings.Compare(a.flag, b.flag) })
	return all
}

// listener is a TCP socket that listens.
type listener struct {
	ip    net.IP
	port  int
	inode uint64
}

// covers reports whether a listener takes connections to an address, or keeps another from
// listening there.
func (l listener) covers(p portFacts) bool {
	wanted := net.ParseIP(p.address)
	return l.port == p.port && (l.ip.IsUnspecified() || wanted == nil || wanted.IsUnspecified() || l.ip.Equal(wanted))
}

// findListeners reads the kernel's list: to open a port could keep Drover from getting it.
func findListeners() ([]listener, error) {
	const listens = 0x0a
	kernel, err := procfs.NewDefaultFS()
	if err != nil {
		return nil, err
	}
	sockets, err := kernel.NetTCP() //nolint:staticcheck // The package that it points to has no list of sockets with inodes.
	if err != nil {
		return nil, err
	}
	if v6, err := kernel.NetTCP6(); err == nil { //nolint:staticcheck // as above; a host may lack it
		sockets = append(sockets, v6...)
	}
	var all []listener
	for _, s := range sockets {
		if s.St == listens {
			all = append(all, listener{s.LocalAddr, int(s.LocalPort), s.Inode}) //nolint:gosec // a port
		}
	}
	return all, nil
}

// findSocketOwner returns the process that has a socket, as far as the caller may see it.
func findSocketOwner(ctx context.Context, inode uint64) (pid int, name string) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, ""
	}
	socket := fmt.Sprintf("socket:[%d]", inode)
	for _, p := range processes {
		if ctx.Err() != nil {
			return 0, ""
		}
		if open, err := p.FileDescriptorTargets(); err == nil && slices.Contains(open, socket) {
			name, _ := p.Comm()
			return p.PID, name
		}
	}
	return 0, ""
}

func judgePorts(f portsFacts) []findings.Finding {
	if f.err != nil {
		return one(findings.Note("%v", f.err).Means("Whether the ports are free is unknown."))
	}
	var all []findings.Finding
	for _, p := range f.ports {
		all = append(all, p.judge())
	}
	return all
}

func (p portFacts) judge() findings.Finding {
	where := fmt.Sprintf("port %d on %s (%s)", p.port, p.address, p.flag)
	isOther := p.taken && p.by != 0 && p.by != p.pid
	switch {
	case p.runs && isOther:
		return findings.Error("%s is another program's: %s", where, p.owner()).Means("Clients of Drover reach that one instead.").FixedBy("stop it, then start Drover again")
	case p.runs && p.taken:
		return findings.OK("%s is Drover's", where)
	case p.runs && p.ready:
		return findings.Error("no program listens on %s", where).Means("Clients cannot reach Drover.").FixedBy("look into the log, then start Drover again")
	case p.runs:
		return findings.Note("no program listens on %s yet", where)
	case p.taken && p.first:
		return findings.Note("%s is in use by %s", where, p.owner()).Means("The first start takes another port, and keeps it.")
	case p.taken && p.flag == "--port":
		return findings.Error("%s is in use by %s", where, p.owner()).Means("drover up does not start: it keeps its port, which kubeconfigs name.").
			FixedBy("stop the other program, or take another port once").FixedByCommand("%s", p.move)
	case p.taken:
		return findings.Error("%s is in use by %s", where, p.owner()).Means("drover up does not start.").FixedBy("stop the other program, or give another address with %s", p.flag)
	}
	return findings.OK("%s is free", where)
}

func (p portFacts) owner() string {
	if p.by == 0 {
		return "another program"
	}
	return fmt.Sprintf("%s (process %d)", p.name, p.by)
}
