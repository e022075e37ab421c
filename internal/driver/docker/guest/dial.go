// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/network"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// dialTimeout limits the attempt at one address, so that there is time for another.
const dialTimeout = 5 * time.Second

// Dial implements driver.Dialer. It connects to the container's own address, else to a port
// of the engine's host that leads to it. The engine's proxy may accept a connection there
// that the container does not accept, and close it.
func (a *Access) Dial(ctx context.Context, uid types.UID, port int32) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, driver.Errorf(driver.ErrInvalid, "port is %d: it must be 1 to 65535", port)
	}
	c, err := a.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	host, own, err := a.findPlace(ctx, c)
	if err != nil {
		return nil, err
	}
	r := route{port: uint16(port), published: c.publishedAddresses(uint16(port), host, own)}
	if own {
		r.own = c.ownAddresses(uint16(port))
	}
	conn, err := r.dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.checkUnchanged(ctx, c); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// findPlace returns the engine's host, and whether the container runs on this one. Only then
// does an address of the container, or a loopback address, mean the same to this process as
// to the engine: anywhere else it may belong to somebody else. Docker Desktop forwards the
// ports of its own virtual machine.
func (a *Access) findPlace(ctx context.Context, c found) (host string, isThisHost bool, err error) {
	if c.runsOnThisHost() {
		return localhost, true, nil
	}
	address := a.options.Engine.Address()
	if host := remoteHost(address); host != "" {
		return host, false, nil
	}
	desktop, err := a.options.Engine.IsDesktop(ctx)
	if err != nil || desktop {
		return localhost, false, err
	}
	return "", false, driver.Errorf(driver.ErrInvalid,
		"no port of this server can be reached: the containers of the Docker engine at %s are not among the processes that Drover sees, so they may run on another host", address)
}

const localhost = "127.0.0.1"

// remoteHost returns the host in an engine's address, or "" for a socket or a loopback
// address, which may lead anywhere.
func remoteHost(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.Hostname() == "localhost" {
		return ""
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return ""
	}
	return u.Hostname()
}

// runsOnThisHost reports whether the container's main process is that process here: its
// control group has the container's id.
func (c found) runsOnThisHost() bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.State.Pid))
	return err == nil && strings.Contains(string(groups), c.ID)
}

// networks returns the container's networks in the order of their names.
func (c found) networks() (names []string, all map[string]*network.EndpointSettings) {
	if c.NetworkSettings == nil {
		return nil, nil
	}
	all = maps.Clone(c.NetworkSettings.Networks)
	maps.DeleteFunc(all, func(_ string, n *network.EndpointSettings) bool { return n == nil })
	return slices.Sorted(maps.Keys(all)), all
}

func (c found) ownAddresses(port uint16) (all []string) {
	names, networks := c.networks()
	for _, name := range names {
		for _, ip := range []netip.Addr{networks[name].IPAddress, networks[name].GlobalIPv6Address} {
			if ip.IsValid() {
				all = append(all, netip.AddrPortFrom(ip, port).String())
			}
		}
	}
	return all
}

// publishedAddresses returns where the host has the port open: on all of its addresses, or on
// one, which only the host itself is sure to have.
func (c found) publishedAddresses(port uint16, host string, isThisHost bool) (all []string) {
	if c.NetworkSettings == nil {
		return nil
	}
	for _, b := range c.NetworkSettings.Ports[network.MustParsePort(strconv.Itoa(int(port))+"/tcp")] {
		at := host
		switch {
		case b.HostPort == "" || b.HostPort == "0":
			continue
		case b.HostIP.IsValid() && !b.HostIP.IsUnspecified() && !isThisHost:
			continue
		case b.HostIP.IsValid() && !b.HostIP.IsUnspecified():
			at = b.HostIP.String()
		case host == localhost && b.HostIP.Is6():
			at = netip.IPv6Loopback().String()
		}
		all = append(all, net.JoinHostPort(at, b.HostPort))
	}
	return all
}

// route is how a port of a container can be reached.
type route struct {
	port           uint16
	own, published []string
}

// dial tries one address after the other. If the container itself refuses, no other leads
// further.
func (r route) dial(ctx context.Context) (net.Conn, error) {
	var failed error
	for n, address := range append(slices.Clone(r.own), r.published...) {
		if n == len(r.own) && errors.Is(failed, syscall.ECONNREFUSED) {
			break
		}
		conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn, nil
		}
		failed = err
	}
	switch {
	case ctx.Err() != nil:
		return nil, driver.Errorf(driver.ErrRetry, "connecting to port %d of the server: %w", r.port, context.Cause(ctx))
	case failed == nil:
		return nil, driver.Errorf(driver.ErrInvalid, "port %d of the server cannot be reached: it has no address that leads there, and spec.ports does not publish the port on one", r.port)
	}
	return nil, driver.Errorf(driver.ErrRetry, "port %d of the server takes no connection: %w", r.port, failed)
}
