// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
)

// chooser returns the host port of a forward if it is free, or any free one where that is
// 0.
type chooser func(context.Context, machine.Forward) (int32, error)

// chooseForwards finds host ports for the ports of a spec. Those that the spec
// names come first, so that none of them is chosen for another port.
func chooseForwards(ctx context.Context, ports []driver.Port, before []machine.Forward, choose chooser) ([]machine.Forward, error) {
	forwards := make([]machine.Forward, len(ports))
	used := map[machine.Forward]bool{}
	for _, chosen := range []bool{false, true} {
		for i, p := range ports {
			if (p.HostPort == 0) != chosen {
				continue
			}
			f, err := chooseForward(ctx, p, before, used, choose)
			if err != nil {
				return nil, portConflict(i, p, f, err)
			}
			forwards[i], used[f.Outside()] = f, true
		}
	}
	return forwards, nil
}

// checkForwards reports whether a machine that has some host ports can get the others
// that a spec names.
func checkForwards(ctx context.Context, ports []driver.Port, have []machine.Forward, choose chooser) error {
	for i, p := range ports {
		f := forwardOf(p)
		// A port cannot be tried that the machine itself has: the same, or where one is of all
		// addresses.
		isOwn := func(own machine.Forward) bool {
			return own.Outside() == f.Outside() && (own.HostIP == f.HostIP || own.HostIP == "" || f.HostIP == "")
		}
		if f.Chosen || slices.ContainsFunc(have, isOwn) {
			continue
		}
		if _, err := choose(ctx, f); err != nil {
			return portConflict(i, p, f, err)
		}
	}
	return nil
}

// portConflict names the port of the spec that a host port is for.
func portConflict(i int, p driver.Port, f machine.Forward, err error) error {
	return driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry,
		"ports[%d] (%s): host port %s cannot be had: %w", i, p.Name, f.HostEnd(), err))
}

// chooseTries is how often a host port is chosen anew when another process, or another
// port of the machine, has the one that was chosen.
const chooseTries = 10

// chooseForward chooses a host port for a port of the spec. Where the spec leaves the
// choice, it takes the port of the previous run if that is free.
func chooseForward(ctx context.Context, p driver.Port, before []machine.Forward, used map[machine.Forward]bool, choose chooser) (f machine.Forward, err error) {
	f = forwardOf(p)
	if !f.Chosen {
		_, err = choose(ctx, f)
		return f, err
	}
	for _, old := range before {
		f.HostPort = old.HostPort
		if f != old || used[f.Outside()] {
			continue
		}
		if _, err := choose(ctx, f); err == nil {
			return f, nil
		}
	}
	for range chooseTries + len(used) {
		f.HostPort = 0
		if f.HostPort, err = choose(ctx, f); err != nil || !used[f.Outside()] {
			return f, err
		}
	}
	return f, errors.New("the host offers those that other ports of the machine have")
}

// forwardOf returns the forward that a port of a spec asks for.
func forwardOf(p driver.Port) machine.Forward {
	return machine.Forward{Protocol: protocolOf(p), HostIP: hostIPOf(p), HostPort: p.HostPort, Port: p.Port, Chosen: p.HostPort == 0}
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

// samePort reports whether two ports are the same for the guest. Their names are Drover's
// own, which no guest sees.
func samePort(a, b driver.Port) bool {
	return a.Port == b.Port && a.HostPort == b.HostPort && hostIPOf(a) == hostIPOf(b) && protocolOf(a) == protocolOf(b)
}

// report returns the server as the driver contract describes it, with the addresses to
// reach it. A machine's own address means nothing outside its QEMU.
func (inst *instance) report() driver.Server {
	out := inst.describeServer()
	if inst.isAlive() {
		out.Accelerator = inst.accelerator()
	}
	if !inst.isAlive() && !inst.Retained && inst.broken == nil {
		inst.driver.reportedExits.Store(inst.UID, inst.Run)
	}
	if !inst.isAlive() || len(inst.Forwards) == 0 {
		return out
	}
	for _, f := range inst.Forwards {
		out.Ports = append(out.Ports, driver.Port{Protocol: strings.ToUpper(f.Protocol), Port: f.Port, HostPort: f.HostPort, HostIP: f.HostIP})
		address := f.HostIP
		if address == "" {
			address = inst.driver.address.currentAddress(inst.driver.Clock.Now())
		}
		if !slices.Contains(out.Addresses, address) {
			out.Addresses = append(out.Addresses, address)
		}
	}
	return out
}

const (
	// loopback is an address at which machines are always reached from their host.
	loopback = "127.0.0.1"
	// addressHolds is how long the host's address is cached.
	addressHolds = 10 * time.Second
)

// hostAddress is the IPv4 address by which other hosts most likely know this host: that
// of its default route.
type hostAddress struct {
	mu      sync.Mutex
	text    string
	renewAt time.Time
}

func (a *hostAddress) currentAddress(now time.Time) string {
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
