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

// Invocation has the configuration of the program on a host, and the files that it inherits. The program opens no files.
type Invocation struct {
	// Program is drover-machine, which is executed through this descriptor.
	Program *os.File
	// Mark is the machine's mark, which is on the command line.
	Mark string
	// Dir is the working directory: the machine's directory, which the program may be unable to open.
	Dir string
	// User is the user to run as, nil for the user of this program.
	User   *confine.User
	Config HostConfig
	// Lock is locked as long as the program has the file open.
	Lock *os.File
	// Listener is the control listener. Monitor, Serial and Agent are connections to QEMU.
	Listener, Monitor, Serial, Agent *os.File
	// Network is the connection to QEMU for the guest's frames.
	Network *os.File
	// Ports are listening sockets on ports of the host.
	Ports map[control.Port]*os.File
	// Process is a pidfd of QEMU.
	Process *os.File
	// Record receives how the run has ended: see MakeRecord.
	Record *os.File
	// SerialLog and Output are logs that QEMU appends to. The Aside files receive the end of a log that is cut.
	SerialLog, SerialAside, Output, OutputAside *os.File
	// CommandOutput has the files of a container image's output, by stream, if Config.OutputBytes is set.
	CommandOutput []*os.File
	// Errors receives the program's standard error.
	Errors *os.File
}

// Rights are the rights of the supervisor of a machine on a host.
var Rights = confine.Rights{MaySignal: true, MayConnect: true}

// oomScore is below the score of a QEMU.
const oomScore = 100

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
	cmd, policy := confine.CommandOf(context.WithoutCancel(ctx), i.Program, installation.ProgramName, files, Rights, FollowCommand, installation.MachineOption, i.Mark)
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1", "GOMEMLIMIT=64MiB")
	cmd.Stderr = i.Errors
	policy.User, policy.Dir, policy.OOMScore = i.User, i.Dir, oomScore
	err = confine.Start(cmd, policy)
	if errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("%w: every user must be able to execute it, and its file system must not be mounted with noexec", err)
	}
	if err != nil {
		return nil, fmt.Errorf("starting the supervisor %s: %w", i.Program.Name(), err)
	}
	return cmd, nil
}

// configFile returns the configuration in an in-memory file.
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
