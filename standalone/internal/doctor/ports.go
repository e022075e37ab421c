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

// portFacts are facts about an address that Drover listens on, or will listen on.
type portFacts struct {
	flag    string
	address string
	port    int
	// isPreferred is set if no start has chosen a port yet: the first start prefers this port.
	isPreferred bool
	runs        bool
	ready       bool
	pid         int // the process of Drover
	taken       bool
	owner       int    // the process that listens, 0 if it is unknown
	ownerName   string // the name of its program
	move        string // the command that takes another port
}

type portsFacts struct {
	ports []portFacts
	err   error
}

func gatherPorts(ctx context.Context, h *Host) portsFacts {
	f := portsFacts{}
	listeners, err := findListeners()
	if _, kept := h.Layout.Port(); err == nil && errors.Is(kept, fs.ErrPermission) {
		err = kept // the kept port may differ from the port of the flags
	}
	if err != nil {
		return portsFacts{err: err}
	}
	_, notReady := os.Stat(h.Layout.Ready())
	for _, p := range h.expectedPorts() {
		p.runs, p.ready, p.pid, p.move = h.isDroverRunning(), notReady == nil, h.PID, h.commandLine("up --port 0")
		for _, l := range listeners {
			if l.coversPort(p) {
				p.taken = true
				p.owner, p.ownerName = findSocketOwner(ctx, l.inode)
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
	if err == nil && kept != 0 && (api.port == 0 || h.isDroverRunning()) {
		api.port = kept
	}
	if api.port == 0 {
		api.port, api.isPreferred = port.Default, true
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

// listener is a listening TCP socket.
type listener struct {
	ip    net.IP
	port  int
	inode uint64
}

// coversPort reports whether a listener accepts connections to the address of p, or prevents
// another listener there.
func (l listener) coversPort(p portFacts) bool {
	wanted := net.ParseIP(p.address)
	return l.port == p.port && (l.ip.IsUnspecified() || wanted == nil || wanted.IsUnspecified() || l.ip.Equal(wanted))
}

// findListeners reads the kernel's list of sockets. Opening ports as a test could prevent Drover from
// opening them.
func findListeners() ([]listener, error) {
	const stateListen = 0x0a
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
		if s.St == stateListen {
			all = append(all, listener{s.LocalAddr, int(s.LocalPort), s.Inode}) //nolint:gosec // a port
		}
	}
	return all, nil
}

// findSocketOwner returns the process that has a socket, or 0 if the caller may not see the process.
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
	isOther := p.taken && p.owner != 0 && p.owner != p.pid
	switch {
	case p.runs && isOther:
		return findings.Error("%s is another program's: %s", where, p.ownerText()).Means("Clients of Drover reach the other program instead.").FixedBy("stop the other program, then start Drover again")
	case p.runs && p.taken:
		return findings.OK("%s is Drover's", where)
	case p.runs && p.ready:
		return findings.Error("no program listens on %s", where).Means("Clients cannot reach Drover.").FixedBy("read the log of Drover, then start Drover again")
	case p.runs:
		return findings.Note("no program listens on %s yet", where)
	case p.taken && p.isPreferred:
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
	if p.owner == 0 {
		return "another program"
	}
	return fmt.Sprintf("%s (process %d)", p.ownerName, p.owner)
}
