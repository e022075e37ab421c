// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release writes the parts of a release that need more than copying: the manifest, the notices of third parties,
// the bill of materials and the Debian package.
//
//	go -C hack/release run . -stage DIR PART
//
// hack/release.sh fills the folder DIR, runs the command for each part, and describes the folder. The same folder
// gives the same bytes. Start with parts; each is in a file of that name.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// parts are the parts that the command can write.
var parts = map[string]func(context.Context, options) error{
	"manifest": writeManifest,
	"sources":  printSources,
	"notices":  writeNotices,
	"bom":      writeBOM,
	"deb":      writePackage,
}

// options are the flags.
type options struct {
	// checkout is the folder of Drover's sources, stage the one with the files of the release.
	checkout, stage string
	// out is the folder of the bill of materials and the package.
	out string
	// expected is the path of a manifest that the release must have; empty allows any.
	expected string
}

func main() {
	var o options
	flag.StringVar(&o.checkout, "checkout", "../..", "folder of Drover's sources")
	flag.StringVar(&o.stage, "stage", "", "folder with the files of the release")
	flag.StringVar(&o.out, "out", "", "folder for the published files")
	flag.StringVar(&o.expected, "expected", "", "manifest that the release must have")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, flag.Arg(0))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, name string) error {
	write, ok := parts[name]
	if !ok {
		return fmt.Errorf("part %q is unknown: allowed are %s", name, strings.Join(slices.Sorted(maps.Keys(parts)), ", "))
	}
	return write(ctx, o)
}
