// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program qemu measures how long a QEMU machine takes from kubectl apply to Active
// and to the first byte that its guest prints, beside the same QEMU command line
// started directly, and what a machine adds to the controller's memory.
//
// Start with options.Run in benchmark.go, which has a turn of Drover's. direct.go has one of QEMU
// alone, and memory.go the memory.
//
// Everything is real: bin/drover up --without-controller, bin/drover-controller as a
// separate process, and QEMU. The guest is that of one boot sector, which prints as
// soon as the BIOS is done. Slowness is never an error; a failure of function is.
package main

import (
	"errors"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/test/bench"
)

// options are the flags.
type options struct {
	Turns      int    `json:"turns"`
	Machines   int    `json:"machines"`
	Starts     int    `json:"starts"`
	Accel      string `json:"accel"`
	Binary     string `json:"-"`
	Controller string `json:"-"`
	JSON       string `json:"-"`
}

func main() { bench.Main("qemu", &options{}, nil) }

// AddFlags implements bench.Benchmark.
func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&o.Turns, "turns", 20, "how often Drover and QEMU alone take turns")
	flags.IntVar(&o.Machines, "machines", 20, "how many machines the controller's memory is measured with; 0 leaves that out")
	flags.IntVar(&o.Starts, "starts", 5, "how often the controller is started for that, without machines and with them")
	flags.StringVar(&o.Accel, "accel", qemu.AccelAuto, "as drover-controller's --qemu-accel")
	flags.StringVar(&o.Binary, "binary", qemu.DefaultBinary, "as drover-controller's --qemu-binary")
	flags.StringVar(&o.Controller, "controller", "bin/drover-controller", "program to measure")
	flags.StringVar(&o.JSON, "json", "bin/bench/qemu.json", "file for all figures")
}

// Validate implements bench.Benchmark.
func (o *options) Validate() error {
	return errors.Join(
		bench.CheckAtLeast(1, map[string]int{"turns": o.Turns, "starts": o.Starts}),
		bench.CheckAtLeast(0, map[string]int{"machines": o.Machines}),
	)
}
