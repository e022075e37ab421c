// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-guest is the first process of a machine that runs a container image. It is the
// only program of the initramfs. Start with package boot.
package main

import (
	"runtime/debug"

	"cloudnative.tw/drover/internal/guest/boot"
)

// gcPercent makes the garbage collector run often: the guest's memory is the image's.
const gcPercent = 20

func main() {
	debug.SetGCPercent(gcPercent)
	boot.Main()
}
