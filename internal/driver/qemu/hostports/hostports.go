// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostports chooses and opens the ports of the host that lead to guests. Machines may use
// only the ports of the flag --qemu-host-ports.
//
// Start with OpenForwards.
package hostports

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/control"
)

// Ports are the ports of the host that machines may use.
type Ports struct {
	text   string
	ranges [][2]int32 // first and last port; empty means that all ports are allowed
	size   uint32     // number of ports in ranges
	next   atomic.Uint32
}

// Parse reads a list of ports and ranges of ports.
func Parse(text string) (*Ports, error) {
	h := &Ports{text: text}
	if text == "" {
		return h, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || from < 1 || from > to {
			return nil, fmt.Errorf("--qemu-host-ports is %q: it must be a list of ports and ranges, each from 1 to 65535, such as 80,30000-32767", text)
		}
		h.ranges = append(h.ranges, [2]int32{int32(from), int32(to)})
		h.size += uint32(to-from) + 1
	}
	h.next.Store(rand.Uint32()) //nolint:gosec // not a secret: it only makes controllers begin at different ports
	return h, nil
}

func (h *Ports) hasPort(port int32) bool {
	for _, r := range h.ranges {
		if port >= r[0] && port <= r[1] {
			return true
		}
	}
	return len(h.ranges) == 0
}

// portAt returns the n-th port of the ranges, modulo their size.
func (h *Ports) portAt(n uint32) int32 {
	n %= h.size
	for _, r := range h.ranges {
		length := uint32(r[1]-r[0]) + 1 //nolint:gosec // 16 bits
		if n < length {
			return r[0] + int32(n) //nolint:gosec // 16 bits
		}
		n -= length
	}
	return 0
}

// Check rejects host ports that machines may not use.
func (h *Ports) Check(ports []driver.Port) error {
	for i, p := range ports {
		if p.HostPort != 0 && !h.hasPort(p.HostPort) {
			return driver.Errorf(driver.ErrInvalid, "spec.ports[%d].hostPort (%s) is %d: it must be one of %s (--qemu-host-ports), or left out to have one chosen", i, p.Name, p.HostPort, h.text)
		}
	}
	return nil
}

// Sockets are listening sockets, by port.
type Sockets map[control.Port]*os.File

// Close closes all sockets.
func (s Sockets) Close() {
	for _, socket := range s {
		_ = socket.Close()
	}
}

// Opener opens the host port of a forward, and returns its number. If HostPort is 0, it opens any free port.
type Opener func(context.Context, Forward) (*os.File, int32, error)

// Open implements Opener. It tries the ports in turn, after the one that the previous call has chosen, so that a machine
// with several ports does not get the same port twice.
func (h *Ports) Open(ctx context.Context, f Forward) (*os.File, int32, error) {
	switch {
	case f.HostPort != 0 && !h.hasPort(f.HostPort):
		return nil, 0, fmt.Errorf("it is not in %s (--qemu-host-ports)", h.text)
	case f.HostPort != 0 || len(h.ranges) == 0:
		socket, port, err := control.Listen(ctx, f.Key())
		return socket, int32(port), err
	}
	var err error
	for range h.size {
		f.HostPort = h.portAt(h.next.Add(1))
		var socket *os.File
		if socket, _, err = control.Listen(ctx, f.Key()); err == nil || ctx.Err() != nil {
			return socket, f.HostPort, err
		}
	}
	return nil, 0, fmt.Errorf("none of %s (--qemu-host-ports) is free: %w", h.text, err)
}

// OpenForwards finds and opens host ports for the ports of a spec, first those that the spec names, so that none of them is
// chosen for another port. previous has the machine's forwards: if isServing, those that the spec still asks for stay open.
func OpenForwards(ctx context.Context, ports []driver.Port, previous []Forward, isServing bool, open Opener) (forwards []Forward, sockets Sockets, err error) {
	o := opening{previous: previous, isServing: isServing, open: open, sockets: Sockets{}}
	forwards = make([]Forward, len(ports))
	for i, p := range ports {
		mayStay := func(f Forward) bool { return isServing && f.matches(p) && !slices.ContainsFunc(o.used, f.Overlaps) }
		if at := slices.IndexFunc(previous, mayStay); at >= 0 {
			forwards[i], o.used = previous[at], append(o.used, previous[at])
		}
	}
	for _, isChosen := range []bool{false, true} {
		for i, p := range ports {
			if (p.HostPort == 0) != isChosen || forwards[i] != (Forward{}) {
				continue
			}
			if forwards[i], err = o.openForward(ctx, p); err != nil {
				o.sockets.Close()
				return nil, nil, ConflictError(i, p, forwards[i], err)
			}
			o.used = append(o.used, forwards[i])
		}
	}
	return forwards, o.sockets, nil
}

// matches reports whether the forward is the one that a port of a spec asks for.
func (f Forward) matches(p driver.Port) bool {
	wanted := forwardOf(p)
	if wanted.Chosen && f.Chosen {
		wanted.HostPort = f.HostPort
	}
	return f == wanted
}

// opening is the state of OpenForwards: forwards of the last run and of this call, and the sockets that it has opened.
type opening struct {
	previous, used []Forward
	isServing      bool
	open           Opener
	sockets        Sockets
}

// openSocket opens the host port of a forward, or any free port if it is 0.
func (o *opening) openSocket(ctx context.Context, f Forward) (Forward, error) {
	socket, port, err := o.open(ctx, f)
	if err != nil {
		return f, err
	}
	f.HostPort = port
	if slices.ContainsFunc(o.used, f.Overlaps) {
		_ = socket.Close()
		return f, errUsed
	}
	o.sockets[f.Key()] = socket
	return f, nil
}

// errUsed means that a host port belongs to another forward of the same machine.
var errUsed = errors.New("another port of the machine has it")

// openForward opens a host port for a port of the spec. If the spec does not name the host port, it opens the port of the
// last run again, or another one if that port is not free.
func (o *opening) openForward(ctx context.Context, p driver.Port) (f Forward, err error) {
	f = forwardOf(p)
	switch {
	case !f.Chosen && slices.ContainsFunc(o.used, f.Overlaps):
		return f, errUsed
	case !f.Chosen && o.isServing && slices.ContainsFunc(o.previous, f.Overlaps):
		return f, nil
	case !f.Chosen:
		return o.openSocket(ctx, f)
	}
	for _, old := range o.previous {
		f.HostPort = old.HostPort
		if f != old || slices.ContainsFunc(o.used, f.Overlaps) {
			continue
		}
		if opened, err := o.openSocket(ctx, f); err == nil {
			return opened, nil
		}
	}
	for range maxTries + len(o.used) {
		f.HostPort = 0
		opened, err := o.openSocket(ctx, f)
		if !errors.Is(err, errUsed) {
			return opened, err
		}
	}
	return f, errors.New("the host offers only ports that other ports of the machine have")
}

// maxTries is how often a host port is chosen again if another forward of the machine has the chosen port.
const maxTries = 10

// CheckForwards returns an error if a host port that a spec names is not available. present are the
// forwards that the machine has now: their ports cannot be opened a second time.
func CheckForwards(ctx context.Context, ports []driver.Port, present []Forward, open Opener) error {
	for i, p := range ports {
		f := forwardOf(p)
		if f.Chosen || slices.ContainsFunc(present, f.Overlaps) {
			continue
		}
		socket, _, err := open(ctx, f)
		if err != nil {
			return ConflictError(i, p, f, err)
		}
		_ = socket.Close()
	}
	return nil
}

// ConflictError returns an error that names the port of the spec whose host port is not available.
func ConflictError(i int, p driver.Port, f Forward, err error) error {
	return driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry,
		"spec.ports[%d] (%s): host port %s is not available: %w", i, p.Name, f.HostEnd(), err))
}

// Forward forwards a port of the host to a port of the guest.
type Forward struct {
	Protocol string `json:"protocol"` // tcp or udp
	// HostIP is the host's address, empty for all IPv4 addresses.
	HostIP   string `json:"hostIP,omitempty"`
	HostPort int32  `json:"hostPort"`
	Port     int32  `json:"port"`
	// Chosen is set if the spec does not name a host port.
	Chosen bool `json:"chosen,omitempty"`
}

// Key returns the forward in the form in which a machine's supervisor knows it.
func (f Forward) Key() control.Port {
	return control.Port{Protocol: f.Protocol, HostIP: f.HostIP, HostPort: uint16(f.HostPort), Port: uint16(f.Port)} //nolint:gosec // ports
}

// KeysOf returns the keys of forwards.
func KeysOf(forwards []Forward) []control.Port {
	keys := make([]control.Port, len(forwards))
	for i, f := range forwards {
		keys[i] = f.Key()
	}
	return keys
}

// Overlaps reports whether two forwards cannot both be open: they have the same host port, and the same
// address of the host, or one has all addresses.
func (f Forward) Overlaps(other Forward) bool {
	return f.Protocol == other.Protocol && f.HostPort == other.HostPort &&
		(f.HostIP == other.HostIP || f.HostIP == "" || other.HostIP == "")
}

// HostEnd returns the forward's host port, protocol and address for messages.
func (f Forward) HostEnd() string {
	text := fmt.Sprintf("%d/%s", f.HostPort, f.Protocol)
	if f.HostIP != "" {
		text += " of " + f.HostIP
	}
	return text
}

// forwardOf returns the forward that a port of a spec asks for.
func forwardOf(p driver.Port) Forward {
	return Forward{Protocol: protocolOf(p), HostIP: hostIPOf(p), HostPort: p.HostPort, Port: p.Port, Chosen: p.HostPort == 0}
}

// hostIPOf returns the host's address for a port, empty for all IPv4 addresses.
func hostIPOf(p driver.Port) string {
	if p.HostIP == net.IPv4zero.String() {
		return ""
	}
	return p.HostIP
}

func protocolOf(p driver.Port) string {
	if p.Protocol == "UDP" {
		return "udp"
	}
	return "tcp"
}

// IsSamePort reports whether two ports are the same except for their names, which the guest does
// not see.
func IsSamePort(a, b driver.Port) bool {
	return a.Port == b.Port && a.HostPort == b.HostPort && hostIPOf(a) == hostIPOf(b) && protocolOf(a) == protocolOf(b)
}

const (
	// loopback is an address at which the host always reaches its machines.
	loopback = "127.0.0.1"
	// addressTTL is how long the host's address is cached.
	addressTTL = 10 * time.Second
)

// Address is the IPv4 address at which other hosts most likely reach this host: the
// address of the interface with the default route.
type Address struct {
	mu        sync.Mutex
	text      string
	expiresAt time.Time
}

// Current returns the address, which it looks up again after addressTTL.
func (a *Address) Current(now time.Time) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Before(a.expiresAt) {
		return a.text
	}
	a.text, a.expiresAt = loopback, now.Add(addressTTL)
	if ip, err := utilnet.ChooseHostInterface(); err == nil && ip.To4() != nil {
		a.text = ip.String()
	}
	return a.text
}
