// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control is the channel by which a drover-machine is spoken to. One in a pod is controlled
// from other hosts: by HTTP over TLS 1.3, each end with a certificate of an authority that the
// machine alone has. One on a host is controlled by HTTP over a Unix socket, with a token.
//
// Start with Client, whose methods are those of Machine at the other end. server.go serves them,
// and credentials.go makes the certificates; local.go has what is different on a host. guest.go
// says what clients reach in the guest, guestclient.go and serveguest.go are its two ends, and
// stream.go is what passes between them. What is sent has no text of the machine's own that one
// end shows to a person: a guest may have broken out of the machine that answers.
package control

import (
	"context"
	"errors"
	"time"
)

// Machine is what is controlled.
type Machine interface {
	// Status returns what the machine does. It works from the start of the program on.
	Status(ctx context.Context) (Status, error)
	// Pause halts the guest's CPUs, and Resume has them go on. Both may be repeated.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Probe returns nil once the guest itself has answered at a TCP port of it that is
	// forwarded.
	Probe(ctx context.Context, port int32) error
	// Grow enlarges disks to at least these sizes, for the guest too, and returns what they are then. No disk
	// shrinks.
	Grow(ctx context.Context, sizes Sizes) (Sizes, error)
	// SetGracePeriod sets how long the guest has to shut down, in whole seconds, once the
	// program is to end. It applies to a later end only.
	SetGracePeriod(ctx context.Context, period time.Duration) error
}

// State is what a machine does.
type State string

// The states.
const (
	// StateStarting : the disks are made, or QEMU is started.
	StateStarting State = "starting"
	StateRunning  State = "running"
	// StatePaused : the guest was paused by Machine.Pause.
	StatePaused State = "paused"
	// StateStopping : the guest was asked to shut down, or has ended.
	StateStopping State = "stopping"
)

// Wait is what a guest waits for that should run.
type Wait string

// What guests wait for. Each continues by itself.
const (
	WaitNone Wait = ""
	// WaitRoom : a disk of the guest has no room on its volume.
	WaitRoom Wait = "room"
	// WaitDisk : a disk of the guest fails.
	WaitDisk Wait = "disk"
)

// Status is what a machine does and has used.
type Status struct {
	State State `json:"state"`
	Waits Wait  `json:"waits,omitempty"`
	// RunState is QEMU's own name for what it does, empty until QEMU was started.
	RunState string `json:"runState,omitempty"`
	// Fault is the disk error that the guest waits for.
	Fault Fault `json:"fault,omitzero"`
	// Accelerator is kvm or tcg, empty until QEMU was started.
	Accelerator string `json:"accelerator,omitempty"`
	// StartedAt is when the guest began to run, zero until then.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// CPUNanoseconds is the CPU time of QEMU since its start, and MemoryBytes what of it is
	// resident.
	CPUNanoseconds int64 `json:"cpuNanoseconds,omitempty"`
	MemoryBytes    int64 `json:"memoryBytes,omitempty"`
	// GuestMemoryBytes is what the guest uses by its own account, 0 if it does not report that.
	GuestMemoryBytes int64 `json:"guestMemoryBytes,omitempty"`
	// Copied is how far the disk that is being made is, nil if none is.
	Copied *Copied `json:"copied,omitempty"`
}

// Fault is a disk error that pauses a guest.
type Fault struct {
	// Node is QEMU's name for the disk, and Operation is read or write.
	Node      string `json:"node,omitempty"`
	Operation string `json:"operation,omitempty"`
	// Reason is the text of Linux for the error.
	Reason string `json:"reason,omitempty"`
}

// Copied is how much of an image is copied or fetched.
type Copied struct {
	Bytes int64 `json:"bytes"`
	// TotalBytes is 0 if it is not known.
	TotalBytes int64 `json:"totalBytes,omitempty"`
}

// Sizes are those of disks; 0 and missing names change nothing.
type Sizes struct {
	RootDisk int64            `json:"rootDisk,omitempty"`
	Volumes  map[string]int64 `json:"volumes,omitempty"`
}

// CallWithin bounds a call at the machine. A probe should have a shorter limit of its caller's.
const CallWithin = 20 * time.Second

// Why a call fails, for errors.Is.
var (
	// ErrNotRunning : the guest does not run yet, waits for its disk, or is being stopped.
	ErrNotRunning = errors.New("the guest does not run, or is being stopped")
	// ErrUnknown : the machine has no such forward or disk, or the disk cannot grow.
	ErrUnknown = errors.New("the machine has no such port or disk")
	// ErrNoAnswer : the guest has not answered at a port.
	ErrNoAnswer = errors.New("the guest does not answer at this port")
	// ErrFenced : a later leader has changed the machine.
	ErrFenced = errors.New("a later leader has changed the machine")
	// ErrFailed : QEMU does not answer, or cannot do it.
	ErrFailed = errors.New("the machine could not do it")
	// ErrUnreachable : no answer came from the machine.
	ErrUnreachable = errors.New("the machine cannot be reached")
	// ErrIdentity : what answers is not the machine, or does not take this client.
	ErrIdentity = errors.New("it is not the machine that answers, or it does not take this client's certificate")
	// ErrProtocol : an answer is not understood.
	ErrProtocol = errors.New("the machine's answer is not understood")
)
