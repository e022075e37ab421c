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
	"cloudnative.tw/drover/internal/driver/docker/engine"
)

// dialTimeout limits the attempt at one address, so that there is time for another.
const dialTimeout = 5 * time.Second

// Dial implements driver.Dialer. It connects to the address of the container, else to a port
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
	at, err := a.findPlace(ctx, c)
	if err != nil {
		return nil, err
	}
	r := route{port: uint16(port), published: c.publishedAddresses(uint16(port), at)}
	if at.own {
		r.own = c.ownAddresses(uint16(port))
	}
	conn, err := r.dialServer(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.checkUnchanged(ctx, c); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// place is where a container runs, as seen from this process. Only on the same host do an
// address of the container and a loopback address mean the same to both; anywhere else they
// may belong to another program.
type place struct {
	own  bool   // addresses of the container lead to it
	host string // leads to published ports, if it is not empty
	here bool   // host is this one, so that other addresses of it lead there too
}

const localhost = "127.0.0.1"

// findPlace finds that out. Docker Desktop forwards the ports of the virtual machine that it runs.
func (a *Access) findPlace(ctx context.Context, c found) (place, error) {
	if c.isProcessHere() {
		return place{own: true, host: localhost, here: true}, nil
	}
	address := a.options.Engine.Address()
	if host := remoteHost(address); host != "" {
		return place{host: host}, nil
	}
	machine, err := a.options.Engine.Machine(ctx)
	switch {
	case err != nil:
		return place{}, err
	case isThis(machine) && c.hasGatewayHere(): // another PID namespace, the network of the host
		return place{own: true, host: localhost, here: true}, nil
	case isThis(machine):
		return place{own: true}, nil
	case machine.OperatingSystem == "Docker Desktop":
		return place{host: localhost}, nil
	}
	return place{}, driver.Errorf(driver.ErrInvalid,
		"no port of this server can be reached: the Docker engine at %s is on another host, %.60q, whose address is not known", address, machine.Name)
}

// isThis reports whether an engine's host is this one. It compares facts that no guest can influence.
func isThis(m engine.Machine) bool {
	name, err := os.Hostname()
	kernel, failed := os.ReadFile("/proc/sys/kernel/osrelease")
	memory, unknown := os.ReadFile("/proc/meminfo")
	if err != nil || failed != nil || unknown != nil {
		return false
	}
	total := strings.Fields(string(memory)) // MemTotal: 1234 kB
	return m.Name == name && m.Kernel == strings.TrimSpace(string(kernel)) && len(total) > 1 && total[1] == strconv.FormatInt(m.Memory/1024, 10)
}

// hasGatewayHere reports whether a gateway of the container is an address of this process's
// network.
func (c found) hasGatewayHere() bool {
	addresses, _ := net.InterfaceAddrs()
	names, networks := c.sortedNetworks()
	return slices.ContainsFunc(names, func(name string) bool {
		gateway := networks[name].Gateway
		return gateway.IsValid() && slices.ContainsFunc(addresses, func(a net.Addr) bool {
			return strings.HasPrefix(a.String(), gateway.String()+"/")
		})
	})
}

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

// isProcessHere reports whether the container's main process is that process here: its
// control group has the container's id.
func (c found) isProcessHere() bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.State.Pid))
	return err == nil && strings.Contains(string(groups), c.ID)
}

// sortedNetworks returns the container's networks in the order of their names.
func (c found) sortedNetworks() (names []string, all map[string]*network.EndpointSettings) {
	if c.NetworkSettings == nil {
		return nil, nil
	}
	all = maps.Clone(c.NetworkSettings.Networks)
	maps.DeleteFunc(all, func(_ string, n *network.EndpointSettings) bool { return n == nil })
	return slices.Sorted(maps.Keys(all)), all
}

func (c found) ownAddresses(port uint16) (all []string) {
	names, networks := c.sortedNetworks()
	for _, name := range names {
		for _, ip := range []netip.Addr{networks[name].IPAddress, networks[name].GlobalIPv6Address} {
			if ip.IsValid() {
				all = append(all, netip.AddrPortFrom(ip, port).String())
			}
		}
	}
	return all
}

// publishedAddresses returns where the engine's host has the port open: on all of its
// addresses, or on one, which only that host is sure to have.
func (c found) publishedAddresses(port uint16, location place) (all []string) {
	if c.NetworkSettings == nil || location.host == "" {
		return nil
	}
	for _, b := range c.NetworkSettings.Ports[network.MustParsePort(strconv.Itoa(int(port))+"/tcp")] {
		host, isOne := location.host, b.HostIP.IsValid() && !b.HostIP.IsUnspecified()
		switch {
		case b.HostPort == "" || b.HostPort == "0", isOne && !location.here:
			continue
		case isOne:
			host = b.HostIP.String()
		case host == localhost && b.HostIP.Is6():
			host = netip.IPv6Loopback().String()
		}
		all = append(all, net.JoinHostPort(host, b.HostPort))
	}
	return all
}

// route is how a port of a container can be reached.
type route struct {
	port           uint16
	own, published []string
}

// dialServer tries one address after the other. If the container itself refuses, no other leads
// further.
func (r route) dialServer(ctx context.Context) (net.Conn, error) {
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
		return nil, driver.Errorf(driver.ErrInvalid, "port %d of the server cannot be reached: no address of it leads there, and spec.ports does not publish the port on one", r.port)
	}
	return nil, driver.Errorf(driver.ErrRetry, "port %d of the server takes no connection: %w", r.port, failed)
}
