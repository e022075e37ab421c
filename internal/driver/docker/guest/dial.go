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

// dialTimeout limits the attempt at one address, so that there is time to try the next.
const dialTimeout = 5 * time.Second

// Dial implements driver.Dialer. It connects to an address of the container, or else to a published
// port on the engine's host. There the engine's proxy may accept a connection that the container
// does not accept, and then close it.
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
	where, err := a.locateContainer(ctx, c)
	if err != nil {
		return nil, err
	}
	r := route{port: uint16(port), published: c.publishedAddresses(uint16(port), where)}
	if where.isContainerReachable {
		r.direct = c.containerAddresses(uint16(port))
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

// location says by which addresses this process reaches a container. The container's addresses and
// loopback addresses are only safe if the engine runs on this host: elsewhere they may belong to
// another program.
type location struct {
	isContainerReachable bool   // by addresses of the container
	host                 string // at which published ports are open; empty if unknown
	isThisHost           bool   // host is this host, so that a port published on one address is reachable too
}

const localhost = "127.0.0.1"

// locateContainer finds the location of a container. Docker Desktop forwards the ports of its virtual machine.
func (a *Access) locateContainer(ctx context.Context, c inspected) (location, error) {
	if c.isProcessHere() {
		return location{isContainerReachable: true, host: localhost, isThisHost: true}, nil
	}
	address := a.options.Engine.Address()
	if host := remoteHost(address); host != "" {
		return location{host: host}, nil
	}
	machine, err := a.options.Engine.Machine(ctx)
	switch {
	case err != nil:
		return location{}, err
	case isThisHost(machine) && c.hasGatewayHere(): // this process has another PID namespace, and the network of the host
		return location{isContainerReachable: true, host: localhost, isThisHost: true}, nil
	case isThisHost(machine):
		return location{isContainerReachable: true}, nil
	case machine.OperatingSystem == "Docker Desktop":
		return location{host: localhost}, nil
	}
	return location{}, driver.Errorf(driver.ErrInvalid,
		"no port of this server can be reached: the Docker engine at %s is on another host, %.60q, whose address is not known", address, machine.Name)
}

// isThisHost reports whether an engine's host is this host. It compares facts that no guest can influence.
func isThisHost(m engine.Machine) bool {
	name, err := os.Hostname()
	kernel, kernelErr := os.ReadFile("/proc/sys/kernel/osrelease")
	memory, memoryErr := os.ReadFile("/proc/meminfo")
	if err != nil || kernelErr != nil || memoryErr != nil {
		return false
	}
	total := strings.Fields(string(memory)) // MemTotal: 1234 kB
	return m.Name == name && m.Kernel == strings.TrimSpace(string(kernel)) && len(total) > 1 && total[1] == strconv.FormatInt(m.Memory/1024, 10)
}

// hasGatewayHere reports whether a gateway of the container is an address in this process's network
// namespace.
func (c inspected) hasGatewayHere() bool {
	addresses, _ := net.InterfaceAddrs()
	names, networks := c.sortedNetworks()
	return slices.ContainsFunc(names, func(name string) bool {
		gateway := networks[name].Gateway
		return gateway.IsValid() && slices.ContainsFunc(addresses, func(a net.Addr) bool {
			return strings.HasPrefix(a.String(), gateway.String()+"/")
		})
	})
}

// remoteHost returns the host in an engine's address, or "" for a socket or a loopback address,
// which may be forwarded to any host.
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

// isProcessHere reports whether the container's main process has the same PID here: the control
// group of that process has the container's id in its name.
func (c inspected) isProcessHere() bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.State.Pid))
	return err == nil && strings.Contains(string(groups), c.ID)
}

// sortedNetworks returns the container's networks in the order of their names.
func (c inspected) sortedNetworks() (names []string, all map[string]*network.EndpointSettings) {
	if c.NetworkSettings == nil {
		return nil, nil
	}
	all = maps.Clone(c.NetworkSettings.Networks)
	maps.DeleteFunc(all, func(_ string, n *network.EndpointSettings) bool { return n == nil })
	return slices.Sorted(maps.Keys(all)), all
}

func (c inspected) containerAddresses(port uint16) (all []string) {
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

// publishedAddresses returns the addresses at which the engine's host publishes the port. It skips a
// port that is published on a single address of another host, which may be unreachable from here.
func (c inspected) publishedAddresses(port uint16, where location) (all []string) {
	if c.NetworkSettings == nil || where.host == "" {
		return nil
	}
	for _, b := range c.NetworkSettings.Ports[network.MustParsePort(strconv.Itoa(int(port))+"/tcp")] {
		host, isSingle := where.host, b.HostIP.IsValid() && !b.HostIP.IsUnspecified()
		switch {
		case b.HostPort == "" || b.HostPort == "0", isSingle && !where.isThisHost:
			continue
		case isSingle:
			host = b.HostIP.String()
		case host == localhost && b.HostIP.Is6():
			host = netip.IPv6Loopback().String()
		}
		all = append(all, net.JoinHostPort(host, b.HostPort))
	}
	return all
}

// route has the addresses for a port of a container: addresses of the container, and of the engine's host.
type route struct {
	port              uint16
	direct, published []string
}

// dialServer tries one address after the other. If the container itself has refused the connection,
// it does not try the published addresses.
func (r route) dialServer(ctx context.Context) (net.Conn, error) {
	var failure error
	for n, address := range append(slices.Clone(r.direct), r.published...) {
		if n == len(r.direct) && errors.Is(failure, syscall.ECONNREFUSED) {
			break
		}
		conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn, nil
		}
		failure = err
	}
	switch {
	case ctx.Err() != nil:
		return nil, driver.Errorf(driver.ErrRetry, "connecting to port %d of the server: %w", r.port, context.Cause(ctx))
	case failure == nil:
		return nil, driver.Errorf(driver.ErrInvalid, "port %d of the server cannot be reached: no address of the server is reachable from here, and spec.ports does not publish the port on one", r.port)
	}
	return nil, driver.Errorf(driver.ErrRetry, "port %d of the server takes no connection: %w", r.port, failure)
}
