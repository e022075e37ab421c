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
)

// nodeStartTimeout is how long a node may take until its kubelet has been started.
const nodeStartTimeout = 3 * time.Minute

// machine is a node as its power switch has it.
type machine struct {
	plan  plan.Plan
	index int

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
}

func (m *machine) isOn() bool {
	if m.cmd == nil {
		return false
	}
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// powerOn starts the node's process tree, in namespaces of its own. It returns when the
// kubelet has been started.
func (m *machine) powerOn(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isOn() {
		return fmt.Errorf("%s is on already", plan.NodeName(m.index))
	}
	// As after a boot: the groups of pods that ran before are gone.
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
	output, err := os.OpenFile(m.plan.NodePath(m.index, "node.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	//nolint:noctx // It outlives the call that started it.
	cmd := exec.Command(m.plan.Program("drover-cluster"), "node-init", m.plan.Name, plan.NodeName(m.index))
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS |
		syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	m.cmd, m.ended = cmd, ended
	go func() {
		defer close(ended)
		log.Printf("%s is off: %v", plan.NodeName(m.index), cmd.Wait())
	}()
	// The node waits for its settings, so its link is there when it looks for it.
	return errors.Join(
		linkNode(m.plan, m.index, cmd.Process.Pid),
		json.NewEncoder(stdin).Encode(node.Settings{Plan: m.plan, Index: m.index}),
		stdin.Close(),
	)
}

func (m *machine) waitUntilStarted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodeStartTimeout)
	defer cancel()
	if err := control.WaitUntilStarted(ctx, m.plan.NodeSocket(m.index), m.ended); err != nil {
		return fmt.Errorf("start %s: %w; see %s", plan.NodeName(m.index), err, m.plan.NodePath(m.index))
	}
	return nil
}

// powerOff ends all that runs on the node at once.
func (m *machine) powerOff() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.isOn() {
		return fmt.Errorf("%s is off already", plan.NodeName(m.index))
	}
	if err := m.cmd.Process.Kill(); err != nil {
		return err
	}
	<-m.ended
	return nil
}
