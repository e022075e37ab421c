// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package files moves files between a container image's machine and the computer of a user, as tar
// streams of one file or folder each. Both ends use it: the agent in the guest, and kubectl vm cp.
//
// Start with Pack (pack.go) and Unpack (unpack.go), which writes each file by write.go.
package files

// Commands that Drover's program in the guest serves itself, so that the image needs no tar. Each has a
// path of the guest as its argument. No program of an image is hidden: a colon is in no usual name.
const (
	// ReadCommand packs the file or folder at the path and writes it to its output, with Pack.
	ReadCommand = "drover:read"
	// WriteCommand unpacks its input at the path, with Unpack.
	WriteCommand = "drover:write"
)

// IsCommand reports whether a command is one of these.
func IsCommand(args []string) bool {
	return len(args) > 0 && (args[0] == ReadCommand || args[0] == WriteCommand)
}
