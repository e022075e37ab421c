// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control is the channel by which Drover controls a drover-machine. One in a pod is controlled from
// other hosts by HTTP over TLS 1.3, and each end has a certificate of an authority that this machine alone
// uses. One on the same host is controlled by HTTP over a Unix socket, with a token.
//
// Start with Client, which implements Machine. server.go serves them, and credentials.go makes
// the certificates. local.go has the differences for a machine on the same host. guest.go has the services
// that clients reach in the guest, guestclient.go and serveguest.go are the two ends of them, and stream.go has
// the messages between them.
//
// The client shows no text of the machine to a person, because a guest may have broken out of the machine that
// answers.
package control

import (
	"context"
	"time"
)

// Machine is a machine that can be controlled.
type Machine interface {
	// Status returns the state and usage of the machine. It works from the start of the program on.
	Status(ctx context.Context) (Status, error)
	// Pause halts the CPUs of the guest, and Resume continues them. Both may be repeated.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Probe returns nil once the guest itself has answered at a forwarded TCP port.
	Probe(ctx context.Context, port int32) error
	// Grow enlarges disks to at least these sizes, also for the guest, and returns their sizes afterwards.
	// It shrinks no disk.
	Grow(ctx context.Context, sizes Sizes) (Sizes, error)
	// SetGracePeriod sets how long the guest has to shut down, in whole seconds, once the program is asked
	// to end. It does not apply to an end that has begun.
	SetGracePeriod(ctx context.Context, period time.Duration) error
}

// State is the state of a machine.
type State string

const (
	// StateStarting means that the machine makes its disks, or starts QEMU.
	StateStarting State = "starting"
	// StateRunning means that the guest runs.
	StateRunning State = "running"
	// StatePaused means that the guest was paused by Machine.Pause.
	StatePaused State = "paused"
	// StateStopping means that the guest was asked to shut down, or that it has ended.
	StateStopping State = "stopping"
)

// Wait is the reason why a guest that should run does not.
type Wait string

// What guests wait for. Each guest continues by itself once the cause is gone.
const (
	WaitNone Wait = ""
	// WaitRoom means that the volume of a disk is full.
	WaitRoom Wait = "room"
	// WaitDisk means that a disk reports errors.
	WaitDisk Wait = "disk"
)

// Status is the state and usage of a machine.
type Status struct {
	State State `json:"state"`
	Waits Wait  `json:"waits,omitempty"`
	// RunState is QEMU's name for its state, empty before QEMU is started.
	RunState string `json:"runState,omitempty"`
	// Fault is the disk error that the guest waits for.
	Fault Fault `json:"fault,omitzero"`
	// Accelerator is kvm or tcg, empty before QEMU is started.
	Accelerator string `json:"accelerator,omitempty"`
	// StartedAt is when the guest began to run, zero before that.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// CPUNanoseconds is the CPU time of QEMU since its start, and MemoryBytes its resident memory.
	CPUNanoseconds int64 `json:"cpuNanoseconds,omitempty"`
	MemoryBytes    int64 `json:"memoryBytes,omitempty"`
	// GuestMemoryBytes is the memory in use as the guest reports it, 0 if it does not.
	GuestMemoryBytes int64 `json:"guestMemoryBytes,omitempty"`
	// Wanted is the revision of the wanted configuration of its edge, as far as the machine knows, and ServedPorts are the
	// ports of the host that it serves: see Network.
	Wanted      Revision `json:"wanted,omitzero"`
	ServedPorts []Port   `json:"servedPorts,omitempty"`
	// IsSilent is set if QEMU does not answer. Client.Status fails with failure.ErrFailed then, and returns what is known without
	// it.
	IsSilent bool `json:"isSilent,omitempty"`
	// Copied is the progress of the disk that is being made, nil if none is.
	Copied *Copied `json:"copied,omitempty"`
}

// Fault is a disk error that pauses a guest.
type Fault struct {
	// Node is QEMU's name for the disk, and Operation is read or write.
	Node      string `json:"node,omitempty"`
	Operation string `json:"operation,omitempty"`
	// Reason is the Linux error text.
	Reason string `json:"reason,omitempty"`
}

// Copied is how much of an image was copied or fetched.
type Copied struct {
	Bytes int64 `json:"bytes"`
	// TotalBytes is 0 if the size is not known.
	TotalBytes int64 `json:"totalBytes,omitempty"`
}

// Sizes are the sizes of disks in bytes. 0 and missing names change nothing.
type Sizes struct {
	RootDisk int64            `json:"rootDisk,omitempty"`
	Volumes  map[string]int64 `json:"volumes,omitempty"`
}

// CallWithin limits how long the machine works on a call. The caller of a probe should set a shorter
// limit.
const CallWithin = 20 * time.Second
