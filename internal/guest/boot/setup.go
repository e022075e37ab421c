// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package boot

import (
	"errors"
	"fmt"
	"os"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/mounts"
	"cloudnative.tw/drover/internal/guest/system"
)

// setUp does all that comes before the entrypoint. The disk for the result is opened first, so that
// the host learns why anything else fails.
func (m *machine) setUp() error {
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
	var err error
	if m.root, err = system.MountRoot(m.config.Disks, warn); err != nil {
		return err
	}
	if err := m.enterRoot(); err != nil {
		return err
	}
	if err := m.root.MountVolumes(m.config.Volumes, m.config.ImageVolumes, warn); err != nil {
		return err
	}
	warn(m.configureLink())
	n := m.config.Network
	warn(system.WriteNames(m.config.Hostname, system.Names{Address: n.Address.Addr(), Resolvers: n.Resolvers, Search: n.Search}))
	warn(system.MountModules(m.config.Disks.Modules))
	if err := system.SetSysctls(m.config.Sysctls); err != nil {
		return err
	}
	return m.mountFiles()
}

// mountFiles mounts the folders whose files the host replaces. They belong to the entrypoint's user.
func (m *machine) mountFiles() error {
	if m.config.Disks.Files == "" {
		return nil
	}
	user, err := lookup(m.config.User)
	if err != nil {
		return err
	}
	device, err := system.FindDisk(m.config.Disks.Files)
	if err != nil {
		return err
	}
	disk, err := os.Open(device) //nolint:gosec // a disk of the host
	if err != nil {
		return err
	}
	m.mounts.UID, m.mounts.GID, m.mounts.FindFolder = int(user.UID), int(user.GID), system.FindFolder
	return errors.Join(mounts.Decode(disk, m.mounts.Mount), disk.Close())
}

// configureLink gives the network interface its address, if the machine has one.
func (m *machine) configureLink() error {
	if !m.config.Network.Address.IsValid() {
		return nil
	}
	link, err := system.FindLink()
	if err == nil {
		err = link.SetUp()
	}
	if err == nil {
		err = link.Configure(m.config.Network)
	}
	if err != nil {
		return fmt.Errorf("the machine gets no address: %w", err)
	}
	return nil
}

func (m *machine) openPorts() (err error) {
	if m.result, err = system.OpenResult(config.ResultSerial); err != nil {
		return err
	}
	for stream, name := range [...]string{config.StdoutPort, config.StderrPort} {
		if m.output[stream].port, err = system.OpenPort(name); err != nil {
			return err
		}
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
