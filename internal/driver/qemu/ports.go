// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"cloudnative.tw/drover/internal/driver"
)

// chooser returns the host port of a forward if it is free, or any free one where that is
// 0.
type chooser func(context.Context, forward) (int32, error)

// chooseForwards finds host ports for the ports of a spec. Those that the spec
// names come first, so that none of them is chosen for another port.
func chooseForwards(ctx context.Context, ports []driver.Port, before []forward, choose chooser) ([]forward, error) {
	forwards := make([]forward, len(ports))
	used := map[forward]bool{}
	for _, chosen := range []bool{false, true} {
		for i, p := range ports {
			if (p.HostPort == 0) != chosen {
				continue
			}
			f, err := chooseForward(ctx, p, before, used, choose)
			if err != nil {
				return nil, portConflict(i, p, f, err)
			}
			forwards[i], used[f.outside()] = f, true
		}
	}
	return forwards, nil
}

// checkForwards reports whether a machine that has some host ports can get the others
// that a spec names.
func checkForwards(ctx context.Context, ports []driver.Port, have []forward, choose chooser) error {
	for i, p := range ports {
		f := forwardOf(p)
		// A port cannot be tried that the machine itself has: the same, or where one is of all
		// addresses.
		isOwn := func(own forward) bool {
			return own.outside() == f.outside() && (own.HostIP == f.HostIP || own.HostIP == "" || f.HostIP == "")
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
func portConflict(i int, p driver.Port, f forward, err error) error {
	return driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry,
		"ports[%d] (%s): host port %s cannot be had: %w", i, p.Name, f.place(), err))
}

// place describes the forward's end on the host, for people.
func (f forward) place() string {
	text := fmt.Sprintf("%d/%s", f.HostPort, f.Protocol)
	if f.HostIP != "" {
		text += " of " + f.HostIP
	}
	return text
}

var ruleFailed = regexp.MustCompile(`(?i)could not set up host forwarding rule '([^']*)'`)

// takenPort returns the index of the forward that QEMU ended over, -1 if there is none.
func takenPort(words string, forwards []forward) int {
	said := ruleFailed.FindStringSubmatch(words)
	return slices.IndexFunc(forwards, func(f forward) bool { return said != nil && said[1] == f.rule() })
}

// chooseTries is how often a host port is chosen anew when another process, or another
// port of the machine, has the one that was chosen.
const chooseTries = 10

// chooseForward chooses a host port for a port of the spec. Where the spec leaves the
// choice, it takes the port of the previous run if that is free.
func chooseForward(ctx context.Context, p driver.Port, before []forward, used map[forward]bool, choose chooser) (f forward, err error) {
	f = forwardOf(p)
	if !f.Chosen {
		_, err = choose(ctx, f)
		return f, err
	}
	for _, old := range before {
		f.HostPort = old.HostPort
		if f != old || used[f.outside()] {
			continue
		}
		if _, err := choose(ctx, f); err == nil {
			return f, nil
		}
	}
	for range chooseTries + len(used) {
		f.HostPort = 0
		if f.HostPort, err = choose(ctx, f); err != nil || !used[f.outside()] {
			return f, err
		}
	}
	return f, errors.New("the host offers those that other ports of the machine have")
}

// forwardOf returns the forward that a port of a spec asks for.
func forwardOf(p driver.Port) forward {
	return forward{Protocol: protocolOf(p), HostIP: hostIPOf(p), HostPort: p.HostPort, Port: p.Port, Chosen: p.HostPort == 0}
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

// rule returns the forward in QEMU's syntax.
func (f forward) rule() string {
	return fmt.Sprintf("%s:%s:%d-:%d", f.Protocol, f.HostIP, f.HostPort, f.Port)
}

// outside returns the part that no two forwards may have in common, whatever their
// addresses: one may be on all addresses.
func (f forward) outside() forward { return forward{Protocol: f.Protocol, HostPort: f.HostPort} }

// freePort is a chooser that tries to open the port.
func freePort(ctx context.Context, f forward) (int32, error) {
	var config net.ListenConfig
	address := net.JoinHostPort(cmp.Or(f.HostIP, net.IPv4zero.String()), strconv.Itoa(int(f.HostPort)))
	if f.Protocol == "udp" {
		conn, err := config.ListenPacket(ctx, "udp4", address)
		if err != nil {
			return 0, err
		}
		return portOf(conn.LocalAddr()), conn.Close()
	}
	listener, err := config.Listen(ctx, "tcp4", address)
	if err != nil {
		return 0, err
	}
	return portOf(listener.Addr()), listener.Close()
}

func portOf(a net.Addr) int32 {
	switch a := a.(type) {
	case *net.TCPAddr:
		return int32(a.Port) //nolint:gosec // 16 bits
	case *net.UDPAddr:
		return int32(a.Port) //nolint:gosec // 16 bits
	}
	return 0
}

// report returns the server as the driver contract describes it, with the addresses to
// reach it. A machine's own address means nothing outside its QEMU.
func (d *Driver) report(s server) driver.Server {
	out := s.report()
	if s.alive() {
		out.Accelerator = d.accelOf(s)
	}
	if !s.alive() && !s.Retained && s.broken == nil {
		d.reportedExits.Store(s.UID, s.Run)
	}
	if !s.alive() || len(s.Forwards) == 0 {
		return out
	}
	for _, f := range s.Forwards {
		out.Ports = append(out.Ports, driver.Port{Protocol: strings.ToUpper(f.Protocol), Port: f.Port, HostPort: f.HostPort, HostIP: f.HostIP})
		address := f.HostIP
		if address == "" {
			address = d.address.get(d.Clock.Now())
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

func (a *hostAddress) get(now time.Time) string {
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
