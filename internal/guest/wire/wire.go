// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire is the protocol between the agent in a container image's machine (package
// guest/agent) and its host (package guest/client).
//
// A virtio-serial port is one stream of bytes. It stays open in the guest, while connections to
// QEMU's socket come and go on the host. So each connection begins with a hello (hello.go), which
// both ends can find behind data of an earlier connection. A yamux session follows (session.go).
// Each of its streams has one Request, frames of data (frame.go), and one Response. Only the host
// opens streams.
package wire

import (
	"cloudnative.tw/drover/internal/guest/report"
)

// Operations of a Request. An agent ignores fields of a Request that it does not know, so what it may not ignore is a new
// operation. OpHello tells which ones the agent of a guest has, which an earlier version of Drover may have booted.
const (
	OpHello      = "hello"      // answered by Verbs
	OpExec       = "exec"       // Exec; input and output by frames
	OpInput      = "input"      // input, if Exec.Stdin is set, and sizes for the entrypoint, until FrameEnd or the end of the stream
	OpInterfaces = "interfaces" // answered by Interfaces
	OpSetTime    = "setTime"    // Nanoseconds since 1970
	OpReseed     = "reseed"     // Seed for the guest's random numbers
	OpRead       = "read"       // Path; answered by frames of a tar stream
	OpWrite      = "write"      // Path; frames of a tar stream
	OpMounted    = "mounted"    // answered by Mounted
	OpMount      = "mount"      // frames of the JSON of a mounts.Content
	OpHold       = "hold"       // holds the entrypoint's output back until the host closes the stream
)

// Verbs are the operations of this version, in their order.
var Verbs = append([]string{OpHello, OpExec, OpInput, OpInterfaces, OpSetTime, OpReseed, OpRead, OpWrite, OpMounted, OpMount, OpHold}, extraVerbs...)

// FirstVerbs are the operations of an agent that does not know OpHello.
var FirstVerbs = Verbs[1:11:11]

// Limits of both ends.
const (
	// MaxRequest is how many bytes a Request may have as JSON. The kernel accepts 2 MiB of arguments.
	MaxRequest = 1 << 20
	// MaxResponse is how many bytes a Response may have.
	MaxResponse = 64 << 10
	// MaxData is how many bytes a frame of data may have.
	MaxData = 32 << 10
	// MaxStreams is how many requests may be open at a time.
	MaxStreams = 32
	// InputWindow is how much input may be sent before FrameTaken reports that the program has read
	// it. The agent buffers that much. So it never stops reading the stream while a program does not
	// read, and still receives FrameResize, and notices when the host closes the stream.
	InputWindow = 256 << 10
	// MaxSeed is how many bytes a seed may have.
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

// Exec is a program to run beside the entrypoint. By default it has the entrypoint's environment,
// user and working directory.
type Exec struct {
	Args []string `json:"args"`
	// Env is added to the entrypoint's environment.
	Env []string `json:"env,omitempty"`
	// User has the form of the user in an image. It is nil for the entrypoint's user.
	User *string `json:"user,omitempty"`
	// WorkingDir is empty for the entrypoint's working directory.
	WorkingDir string `json:"workingDir,omitempty"`
	// TTY gives the program a terminal of Size. FrameStdout then has all output.
	TTY  bool `json:"tty,omitempty"`
	Size Size `json:"size,omitzero"`
	// Stdin is set if input follows.
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
	ReasonNotExecutable = "notExecutable" // the program cannot be executed
	ReasonBusy          = "busy"          // the agent serves MaxStreams requests
	ReasonTaken         = "taken"         // another caller writes to the entrypoint
	ReasonEnded         = "ended"         // the entrypoint's input has ended
	ReasonFailed        = "failed"        // any other reason
)

// Response is the last frame of a stream.
type Response struct {
	// Reason is empty for a success. Message is for people.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Code is the exit code of a program. If a signal ended the program, Signal is its number, and Code 128 more.
	Code       int                `json:"code,omitempty"`
	Signal     int                `json:"signal,omitempty"`
	Interfaces []report.Interface `json:"interfaces,omitempty"`
	// Verbs are the operations that the agent knows.
	Verbs []string `json:"verbs,omitempty"`
	// Mounted has the revisions of the folders of package guest/mounts by their paths.
	Mounted map[string]string `json:"mounted,omitempty"`
}
