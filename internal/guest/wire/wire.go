// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire is the protocol between the agent in a container image's machine and its host: what
// internal/guest/agent and internal/guest/client have in common.
//
// A virtio-serial port is one stream of bytes that stays open in the guest while connections to
// QEMU's socket come and go on the host. So each connection begins with a hello (hello.go), which
// both ends find in whatever is left of the connection before. Then it has a yamux session
// (session.go), each of whose streams carries one Request, frames of data (frame.go), and one
// Response. The host opens all streams.
package wire

import (
	"cloudnative.tw/drover/internal/guest/report"
)

// Operations of a Request.
const (
	OpExec       = "exec"       // Exec; input and output by frames
	OpInterfaces = "interfaces" // answered by Interfaces
	OpSetTime    = "setTime"    // Nanoseconds since 1970
	OpReseed     = "reseed"     // Seed for the guest's random numbers
	OpRead       = "read"       // Path; answered by frames of a tar stream
	OpWrite      = "write"      // Path; frames of a tar stream
	OpHold       = "hold"       // holds the entrypoint's output back until the host closes the stream
)

// Limits of both ends.
const (
	// MaxRequest is how long a Request may be, as JSON. The kernel takes 2 MiB of arguments.
	MaxRequest = 1 << 20
	// MaxResponse is how long a Response may be.
	MaxResponse = 64 << 10
	// MaxData is how long a frame of data may be.
	MaxData = 32 << 10
	// MaxStreams is how many requests the agent serves at a time. A host has at most as many open.
	MaxStreams = 32
	// InputWindow is how much input of a program may be on its way: what was sent and not reported by
	// FrameTaken. So the agent always reads on, and learns of a terminal's size and of a host that
	// leaves, though the program reads nothing.
	InputWindow = 256 << 10
	// MaxSeed is how many bytes of a seed are taken.
	MaxSeed = 512
)

// Request is the first frame of a stream.
type Request struct {
	Op          string `json:"op"`
	Exec        *Exec  `json:"exec,omitempty"`
	Path        string `json:"path,omitempty"`
	Nanoseconds int64  `json:"nanoseconds,omitempty"`
	Seed        []byte `json:"seed,omitempty"`
}

// Exec is a program to run beside the entrypoint, with its environment, user and folder where
// nothing else is said.
type Exec struct {
	Args []string `json:"args"`
	// Env is added to the entrypoint's.
	Env []string `json:"env,omitempty"`
	// User is written as in an image, nil for the entrypoint's.
	User *string `json:"user,omitempty"`
	// WorkingDir is empty for the entrypoint's.
	WorkingDir string `json:"workingDir,omitempty"`
	// TTY gives it a terminal, of Size. All of its output is then in FrameStdout.
	TTY  bool `json:"tty,omitempty"`
	Size Size `json:"size,omitzero"`
	// Stdin says that input follows.
	Stdin bool `json:"stdin,omitempty"`
}

// Size is the size of a terminal, in characters.
type Size struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Reasons of a Response that fails.
const (
	ReasonNotFound      = "notFound"      // the program is not in the image
	ReasonNotExecutable = "notExecutable" // it cannot be executed
	ReasonBusy          = "busy"          // the agent serves MaxStreams requests
	ReasonFailed        = "failed"        // any other
)

// Response is the last frame of a stream.
type Response struct {
	// Reason is empty for a success. Message is for people.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Code and Signal are how a program ended: 128 and the signal's number for one that a signal ended.
	Code       int                `json:"code,omitempty"`
	Signal     int                `json:"signal,omitempty"`
	Interfaces []report.Interface `json:"interfaces,omitempty"`
}
