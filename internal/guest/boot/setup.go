// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package boot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/dhcp"
	"cloudnative.tw/drover/internal/guest/system"
)

// leaseWithin is how long the entrypoint waits for an address. Then it runs without one.
const leaseWithin = 15 * time.Second

// setUp does all that comes before the entrypoint. The disk for the result is opened first, so that
// the host learns why anything else fails.
func (m *machine) setUp(ctx context.Context) error {
	if err := errors.Join(system.MountEarly(), system.LoadModules()); err != nil {
		return err
	}
	if err := m.openPorts(); err != nil {
		return err
	}
	if err := m.readConfig(); err != nil {
		return err
	}
	warn(system.WatchPowerButton(m.press))
	names := m.startNetwork(ctx)
	var err error
	if m.root, err = system.MountRoot(m.config.Disks, warn); err != nil {
		return err
	}
	if err := m.enterRoot(); err != nil {
		return err
	}
	warn(system.WriteNames(m.config.Hostname, <-names))
	return nil
}

func (m *machine) openPorts() (err error) {
	if m.result, err = system.OpenResult(config.ResultSerial); err != nil {
		return err
	}
	if m.log, err = system.OpenPort(config.LogPort); err != nil {
		return err
	}
	m.agent, err = system.OpenDuplex(config.AgentPort)
	return err
}

func (m *machine) readConfig() error {
	text, err := system.ReadConfig(config.File, config.MaxBytes)
	if err != nil {
		return err
	}
	m.config, err = config.Decode(text)
	return err
}

// press notes a press of the power button.
func (m *machine) press() {
	select {
	case m.pressed <- struct{}{}:
	default:
	}
}

// enterRoot makes the image's root this program's.
func (m *machine) enterRoot() error {
	if err := system.SwitchRoot(); err != nil {
		return err
	}
	if err := errors.Join(system.MountLate(), system.SetHostname(m.config.Hostname)); err != nil {
		return err
	}
	warn(system.StartLoopback())
	return system.SetLimits(warn)
}

// startNetwork sets the network up beside what follows. The channel gets what /etc has to say of
// hosts, in any case.
func (m *machine) startNetwork(ctx context.Context) <-chan system.Names {
	names := make(chan system.Names, 1)
	static := system.Names{Resolvers: m.config.Network.Resolvers, Search: m.config.Network.Search}
	if !m.config.Network.DHCP {
		names <- static
		return names
	}
	link, err := system.FindLink()
	if err != nil {
		warn(err)
		names <- static
		return names
	}
	go func() {
		lease, err := m.acquire(ctx, link)
		if err != nil {
			warn(fmt.Errorf("the machine has no address: %w", err))
		}
		names <- m.namesOf(lease)
		m.keepLease(ctx, link, lease)
	}()
	return names
}

func (m *machine) acquire(ctx context.Context, link system.Link) (dhcp.Lease, error) {
	if err := link.SetUp(); err != nil {
		return dhcp.Lease{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, leaseWithin)
	defer cancel()
	lease, err := link.Acquire(ctx, m.config.Hostname)
	if err != nil {
		return dhcp.Lease{}, err
	}
	return lease, link.Configure(lease)
}

// namesOf returns what a lease says of hosts, unless the configuration says otherwise.
func (m *machine) namesOf(lease dhcp.Lease) system.Names {
	n := system.Names{Resolvers: m.config.Network.Resolvers, Search: m.config.Network.Search}
	if lease.Address.IsValid() {
		n.Address = lease.Address.Addr()
	}
	if len(n.Resolvers) == 0 {
		n.Resolvers = lease.Resolvers
	}
	if len(n.Search) == 0 {
		n.Search = lease.Search
	}
	return n
}

// keepLease renews a lease, or asks for a first one, for ever. The machine keeps its address whatever the server
// says: no other machine is in its network.
func (m *machine) keepLease(ctx context.Context, link system.Link, lease dhcp.Lease) {
	for {
		<-time.After(lease.Renewal())
		if lease.Address.IsValid() {
			if renewed, err := link.Renew(ctx, m.config.Hostname, lease); err == nil {
				lease = renewed
			}
			continue
		}
		if acquired, err := m.acquire(ctx, link); err == nil {
			lease = acquired
		}
	}
}
