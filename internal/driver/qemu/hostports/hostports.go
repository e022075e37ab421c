// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostports chooses the ports of the host that lead to guests, among those that
// machines may use.
//
// Start with ChooseForwards.
package hostports

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
)

// Ports are the ports of the host that machines may use.
type Ports struct {
	text   string
	ranges [][2]int32 // from, to; none means all
	size   uint32     // how many there are
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
	h.next.Store(rand.Uint32()) //nolint:gosec // so that controllers begin elsewhere; no secret
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

// portAt returns the n-th of the ports, counting around.
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

// Check refuses host ports that machines may not have.
func (h *Ports) Check(ports []driver.Port) error {
	for i, p := range ports {
		if p.HostPort != 0 && !h.hasPort(p.HostPort) {
			return driver.Errorf(driver.ErrInvalid, "spec.ports[%d].hostPort (%s) is %d: it must be one of %s (--qemu-host-ports), or left out to have one chosen", i, p.Name, p.HostPort, h.text)
		}
	}
	return nil
}

// Choose is a chooser that tries ports. Each choice continues where the previous one
// ended, so that a machine with several ports is not offered a port that it took already.
func (h *Ports) Choose(ctx context.Context, f launch.Forward) (int32, error) {
	switch {
	case f.HostPort != 0 && !h.hasPort(f.HostPort):
		return 0, fmt.Errorf("it is none of %s (--qemu-host-ports)", h.text)
	case f.HostPort != 0 || len(h.ranges) == 0:
		return machine.FreePort(ctx, f)
	}
	var err error
	for range h.size {
		f.HostPort = h.portAt(h.next.Add(1))
		if _, err = machine.FreePort(ctx, f); err == nil || ctx.Err() != nil {
			return f.HostPort, err
		}
	}
	return 0, fmt.Errorf("none of %s (--qemu-host-ports) is free: %w", h.text, err)
}

// Chooser returns the host port of a forward if it is free, or any free one where that is
// 0.
type Chooser func(context.Context, launch.Forward) (int32, error)

// ChooseForwards finds host ports for the ports of a spec. Those that the spec
// names come first, so that none of them is chosen for another port.
func ChooseForwards(ctx context.Context, ports []driver.Port, before []launch.Forward, choose Chooser) ([]launch.Forward, error) {
	forwards := make([]launch.Forward, len(ports))
	var used []launch.Forward
	for _, chosen := range []bool{false, true} {
		for i, p := range ports {
			if (p.HostPort == 0) != chosen {
				continue
			}
			f, err := chooseForward(ctx, p, before, used, choose)
			if err != nil {
				return nil, ConflictError(i, p, f, err)
			}
			forwards[i], used = f, append(used, f)
		}
	}
	return forwards, nil
}

// CheckForwards reports whether a machine that has some host ports can get the others
// that a spec names.
func CheckForwards(ctx context.Context, ports []driver.Port, have []launch.Forward, choose Chooser) error {
	for i, p := range ports {
		f := forwardOf(p)
		// A port cannot be tried that the machine itself has.
		if f.Chosen || slices.ContainsFunc(have, f.Overlaps) {
			continue
		}
		if _, err := choose(ctx, f); err != nil {
			return ConflictError(i, p, f, err)
		}
	}
	return nil
}

// ConflictError names the port of the spec that a host port is for.
func ConflictError(i int, p driver.Port, f launch.Forward, err error) error {
	return driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry,
		"spec.ports[%d] (%s): host port %s is not available: %w", i, p.Name, f.HostEnd(), err))
}

// MaxTries is how often a host port is chosen again when another process, or another
// port of the machine, has the one that was chosen.
const MaxTries = 10

// chooseForward chooses a host port for a port of the spec. Where the spec leaves the
// choice, it takes the port of the previous run if that is free.
func chooseForward(ctx context.Context, p driver.Port, before []launch.Forward, used []launch.Forward, choose Chooser) (f launch.Forward, err error) {
	f = forwardOf(p)
	if !f.Chosen {
		_, err = choose(ctx, f)
		return f, err
	}
	for _, old := range before {
		f.HostPort = old.HostPort
		if f != old || slices.ContainsFunc(used, f.Overlaps) {
			continue
		}
		if _, err := choose(ctx, f); err == nil {
			return f, nil
		}
	}
	for range MaxTries + len(used) {
		f.HostPort = 0
		if f.HostPort, err = choose(ctx, f); err != nil || !slices.ContainsFunc(used, f.Overlaps) {
			return f, err
		}
	}
	return f, errors.New("the host offers those that other ports of the machine have")
}

// forwardOf returns the forward that a port of a spec asks for.
func forwardOf(p driver.Port) launch.Forward {
	return launch.Forward{Protocol: protocolOf(p), HostIP: hostIPOf(p), HostPort: p.HostPort, Port: p.Port, Chosen: p.HostPort == 0}
}

// hostIPOf returns the address that a port is opened on, empty for all IPv4 addresses.
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

// IsSamePort reports whether two ports are the same for the guest. Their names are Drover's
// own, which no guest sees.
func IsSamePort(a, b driver.Port) bool {
	return a.Port == b.Port && a.HostPort == b.HostPort && hostIPOf(a) == hostIPOf(b) && protocolOf(a) == protocolOf(b)
}

const (
	// loopback is an address at which machines are always reached from their host.
	loopback = "127.0.0.1"
	// addressHolds is how long the host's address is cached.
	addressHolds = 10 * time.Second
)

// Address is the IPv4 address by which other hosts most likely know this host: that
// of its default route.
type Address struct {
	mu      sync.Mutex
	text    string
	renewAt time.Time
}

// Current returns the address, which it looks up again after a while.
func (a *Address) Current(now time.Time) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Before(a.renewAt) {
		return a.text
	}
	a.text, a.renewAt = loopback, now.Add(addressHolds)
	if ip, err := utilnet.ChooseHostInterface(); err == nil && ip.To4() != nil {
		a.text = ip.String()
	}
	return a.text
}
