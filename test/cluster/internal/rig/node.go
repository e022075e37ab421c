// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"cloudnative.tw/drover/test/cluster/internal/cgroups"
	"cloudnative.tw/drover/test/cluster/internal/control"
	"cloudnative.tw/drover/test/cluster/internal/node"
	"cloudnative.tw/drover/test/cluster/internal/plan"
	"cloudnative.tw/drover/test/cluster/internal/processes"
)

// nodeStartTimeout is how long a node may take until its kubelet is started.
const nodeStartTimeout = 3 * time.Minute

// machine is a node that can be switched on and off.
type machine struct {
	plan  plan.Plan
	index int

	mu      sync.Mutex
	process *processes.Process
}

// powerOn starts the node's process tree in separate namespaces, and waits until the kubelet
// is started.
func (m *machine) powerOn(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process.IsRunning() {
		return fmt.Errorf("%s is on already", plan.NodeName(m.index))
	}
	// As after a real boot, the control groups of earlier pods are gone.
	if err := cgroups.Remove(m.plan.NodeGroup(m.index)); err != nil {
		return err
	}
	if err := cgroups.Make(m.plan.NodeGroup(m.index)); err != nil {
		return err
	}
	if err := os.Remove(m.plan.NodeSocket(m.index)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := m.start(); err != nil {
		return fmt.Errorf("start %s: %w", plan.NodeName(m.index), err)
	}
	return m.waitUntilStarted(ctx)
}

func (m *machine) start() error {
	//nolint:noctx // It outlives the call that starts it.
	cmd := exec.Command(m.plan.Program("drover-cluster"), "node-init", m.plan.Name, plan.NodeName(m.index))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS |
		syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if m.process, err = processes.Start(m.plan.NodePath(m.index, "node.log"), cmd, func(end error) {
		log.Printf("%s is off: %v", plan.NodeName(m.index), end)
	}); err != nil {
		return err
	}
	// The node gets its settings only after its link exists.
	return errors.Join(
		linkNode(m.plan, m.index, cmd.Process.Pid),
		json.NewEncoder(stdin).Encode(node.Settings{Plan: m.plan, Index: m.index}),
		stdin.Close(),
	)
}

func (m *machine) waitUntilStarted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodeStartTimeout)
	defer cancel()
	if err := control.WaitUntilStarted(ctx, m.plan.NodeSocket(m.index), m.process.Ended); err != nil {
		return fmt.Errorf("start %s: %w; see %s", plan.NodeName(m.index), err, m.plan.NodePath(m.index))
	}
	return nil
}

// powerOff kills all processes of the node at once.
func (m *machine) powerOff() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.process.IsRunning() {
		return fmt.Errorf("%s is off already", plan.NodeName(m.index))
	}
	if err := m.process.Process.Kill(); err != nil {
		return err
	}
	<-m.process.Ended
	return nil
}
