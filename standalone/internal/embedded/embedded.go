// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package embedded has the program drover-machine, so that drover is one file to install. make build puts it
// into programs; a build without it looks for drover-machine beside drover.
package embedded

import "embed"

//go:embed all:programs
var programs embed.FS

// Machine returns the content of drover-machine, nil if it was not built in.
func Machine() []byte {
	content, err := programs.ReadFile("programs/drover-machine")
	if err != nil {
		return nil
	}
	return content
}
