// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control is the protocol by which Drover controls a drover-machine. In a pod, the machine serves HTTP
// over TLS 1.3, and each end has a certificate from an authority that only this machine uses. On a host, the
// machine serves HTTP over a Unix socket to clients with a token.
//
// Start with Machine, which Client implements and server.go serves. credentials.go makes the certificates.
// local.go has the differences for a machine on the same host. guest.go has the services of the guest;
// guestclient.go and serveguest.go are their two ends, and stream.go has the messages between them. peers.go
// connects machines of a host to each other.
//
// A client never shows text that it received to a person, since a guest may have broken out and may send the
// answers.
package control

import (
	"context"
	"time"

	"cloudnative.tw/drover/internal/image/health"
)

// Machine is a machine that can be controlled.
type Machine interface {
	// Status returns the state and usage of the machine. It works as soon as the program runs.
	Status(ctx context.Context) (Status, error)
	// Pause halts the CPUs of the guest, and Resume continues them. Both may be repeated.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Probe returns nil once the guest has accepted a connection to a forwarded TCP port.
	Probe(ctx context.Context, port int32) error
	// Grow enlarges disks to at least sizes, so that the guest sees the new sizes, and returns them. It never
	// shrinks a disk.
	Grow(ctx context.Context, sizes Sizes) (Sizes, error)
	// SetGracePeriod sets how long the guest has to shut down after a signal to the program, in whole seconds.
	// It has no effect on a stop that has begun.
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

// Wait is the reason why QEMU has paused a guest that should run.
type Wait string

// Reasons for a wait. The guest continues by itself once the reason is gone.
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
	// Fault is the last disk error that paused the guest.
	Fault Fault `json:"fault,omitzero"`
	// Accelerator is kvm or tcg, empty before QEMU is started.
	Accelerator string `json:"accelerator,omitempty"`
	// StartedAt is when the guest began to run, zero before that.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// CPUNanoseconds is the CPU time of QEMU since its start, and MemoryBytes its resident memory.
	CPUNanoseconds int64 `json:"cpuNanoseconds,omitempty"`
	MemoryBytes    int64 `json:"memoryBytes,omitempty"`
	// GuestMemoryBytes is the memory in use by the guest's report, 0 if the guest reports none.
	GuestMemoryBytes int64 `json:"guestMemoryBytes,omitempty"`
	// Wanted is the last revision of Network.SetWanted. ServedPorts are the ports of the host that the machine serves.
	Wanted      Revision `json:"wanted,omitzero"`
	ServedPorts []Port   `json:"servedPorts,omitempty"`
	// IsSilent is set if QEMU does not answer. Client.Status then fails with failure.ErrFailed, and returns the fields
	// that are known without QEMU.
	IsSilent bool `json:"isSilent,omitempty"`
	// Health is the result of the health check of a container image, empty without one.
	Health health.State `json:"health,omitempty"`
	// Copied is the progress of making a disk, nil if no disk is being made.
	Copied *Copied `json:"copied,omitempty"`
}

// Fault is a disk error that pauses a guest.
type Fault struct {
	// Node is QEMU's name for the disk, and Operation is read or write.
	Node      string `json:"node,omitempty"`
	Operation string `json:"operation,omitempty"`
	// Reason is the text of errno.
	Reason string `json:"reason,omitempty"`
}

// Copied is how much of an image was copied or fetched.
type Copied struct {
	Bytes int64 `json:"bytes"`
	// TotalBytes is 0 if the size is not known.
	TotalBytes int64 `json:"totalBytes,omitempty"`
}

// Sizes are the sizes of disks in bytes. A disk with 0, or without an entry, does not change.
type Sizes struct {
	RootDisk int64            `json:"rootDisk,omitempty"`
	Volumes  map[string]int64 `json:"volumes,omitempty"`
}

// CallWithin limits how long the machine works on a call. A caller of Probe should set a shorter limit.
const CallWithin = 20 * time.Second
