// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/installation"
)

// FollowCommand is the first argument of the program on a host.
const FollowCommand = "follow"

// Invocation is a start of the program on a host: its configuration, and the files that it inherits. It opens none itself.
type Invocation struct {
	// Program is the program, which is executed by its descriptor.
	Program *os.File
	// UUID is the machine's, for those who look at processes.
	UUID string
	// Dir is the working directory, the machine's. The program need not be able to open it.
	Dir string
	// User is the user to run as, nil for the user of this program.
	User   *confine.User
	Config HostConfig
	// Lock is held by the program as long as it runs.
	Lock *os.File
	// Listener is where others connect; Monitor, Serial and Agent are connected to QEMU.
	Listener, Monitor, Serial, Agent *os.File
	// Network is connected to QEMU too, for the frames of the guest.
	Network *os.File
	// Ports are sockets of ports of the host.
	Ports map[control.Port]*os.File
	// Process is a handle on QEMU's process.
	Process *os.File
	// Record gets how the run has ended: see MakeRecord.
	Record *os.File
	// SerialLog and Output are logs that QEMU appends to. The files beside them get what is cut off.
	SerialLog, SerialAside, Output, OutputAside *os.File
	// CommandOutput has the files of a container image's output, by stream, for a Config that bounds it.
	CommandOutput []*os.File
	// Errors gets what the program prints.
	Errors *os.File
}

// Rights are the rights of the supervisor of a machine on a host.
var Rights = confine.Rights{MaySignal: true, MayConnect: true}

// Spawn starts the program, confined. The caller closes its files, and waits for the process.
func Spawn(ctx context.Context, i Invocation) (*exec.Cmd, error) {
	i.Config.Version, i.Config.Ports = Version, slices.Collect(maps.Keys(i.Ports))
	config, err := configFile(i.Config)
	if err != nil {
		return nil, err
	}
	defer func() { _ = config.Close() }()
	files := []*os.File{ // in the order of their descriptors
		config, i.Lock, i.Listener, i.Monitor, i.Serial, i.Agent, i.Process, i.Record,
		i.SerialLog, i.SerialAside, i.Output, i.OutputAside, i.Network,
	}
	for _, p := range i.Config.Ports {
		files = append(files, i.Ports[p])
	}
	files = append(files, i.CommandOutput...)
	cmd, policy := confine.CommandOf(context.WithoutCancel(ctx), i.Program, installation.ProgramName, files, Rights, FollowCommand, installation.MachineOption, i.UUID)
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1", "GOMEMLIMIT=64MiB")
	cmd.Stderr = i.Errors
	policy.User, policy.Dir = i.User, i.Dir
	err = confine.Start(cmd, policy)
	if errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("%w: every user must be able to execute it, and its file system must not be mounted with noexec", err)
	}
	if err != nil {
		return nil, fmt.Errorf("starting the supervisor %s: %w", i.Program.Name(), err)
	}
	return cmd, nil
}

// configFile returns a file of memory.
func configFile(c HostConfig) (*os.File, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "config")
	if _, err = f.Write(text); err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
