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

	"github.com/prometheus/procfs"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/standalone/internal/port"
)

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
		p.runs, p.ready, p.pid, p.move = h.runs(), notReady == nil, h.PID, h.commandLine("up --port 0")
		for _, l := range listeners {
			if l.coversPort(p) {
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

// coversPort reports whether a listener takes connections to an address, or keeps another from
// listening there.
func (l listener) coversPort(p portFacts) bool {
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
	sockets, err := kernel.NetTCP() //nolint:staticcheck // The package that it points to does not list sockets with inodes.
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
		return oneFinding(findings.Note("%v", f.err).Means("Whether the ports are free is unknown."))
	}
	var all []findings.Finding
	for _, p := range f.ports {
		all = append(all, p.judgePort())
	}
	return all
}

func (p portFacts) judgePort() findings.Finding {
	where := fmt.Sprintf("port %d on %s (%s)", p.port, p.address, p.flag)
	isOther := p.taken && p.by != 0 && p.by != p.pid
	switch {
	case p.runs && isOther:
		return findings.Error("%s is another program's: %s", where, p.ownerText()).Means("Clients of Drover reach that one instead.").FixedBy("stop it, then start Drover again")
	case p.runs && p.taken:
		return findings.OK("%s is Drover's", where)
	case p.runs && p.ready:
		return findings.Error("no program listens on %s", where).Means("Clients cannot reach Drover.").FixedBy("look into the log, then start Drover again")
	case p.runs:
		return findings.Note("no program listens on %s yet", where)
	case p.taken && p.first:
		return findings.Note("%s is in use by %s", where, p.ownerText()).Means("The first start takes another port, and keeps it.")
	case p.taken && p.flag == "--port":
		return findings.Error("%s is in use by %s", where, p.ownerText()).Means("drover up does not start: it keeps its port, which kubeconfigs name.").
			FixedBy("stop the other program, or take another port once").FixedByCommand("%s", p.move)
	case p.taken:
		return findings.Error("%s is in use by %s", where, p.ownerText()).Means("drover up does not start.").FixedBy("stop the other program, or give another address with %s", p.flag)
	}
	return findings.OK("%s is free", where)
}

func (p portFacts) ownerText() string {
	if p.by == 0 {
		return "another program"
	}
	return fmt.Sprintf("%s (process %d)", p.name, p.by)
}
