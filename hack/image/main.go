// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command image builds the container image of drover-controller, or of another program
// under cmd/, without an engine, from nothing but the static program and the files of a
// folder. The same source gives the same image, bit by bit.
//
//	go -C hack/image run . --tag registry.example/drover-controller:v1 --push
//
// Start with run. program.go compiles, image.go makes images, deliver.go writes
// and pushes them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

type options struct {
	source    string
	out       string
	tag       string
	version   string
	platforms string
	program   string
	root      string
	packages  string
	notices   string
	push      bool
}

func main() {
	var o options
	flag.StringVar(&o.source, "source", "../..", "checkout to build")
	flag.StringVar(&o.out, "out", "../../bin/image", "folder to write into")
	flag.StringVar(&o.tag, "tag", "drover-controller:dev", "name of the image")
	flag.StringVar(&o.version, "version", "dev", "version that the program reports")
	flag.StringVar(&o.platforms, "platforms", "linux/amd64", "comma-separated list")
	flag.StringVar(&o.program, "program", controller, "program under cmd/ that the image runs")
	flag.StringVar(&o.root, "root", "", "folder with further files of the image")
	flag.StringVar(&o.packages, "packages", "", "file with the Debian packages that these are of, one a line as NAME=VERSION")
	flag.StringVar(&o.notices, "notices", "", "file with the licences of the modules in the program")
	flag.BoolVar(&o.push, "push", false, "push the image to the registry in its name, with the credentials of docker login")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run builds an image for each platform, writes them, and may push them.
func run(ctx context.Context, o options) error {
	tag, err := name.NewTag(o.tag)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	images := map[string]v1.Image{}
	for platform := range strings.SplitSeq(o.platforms, ",") {
		if images[platform], err = buildImage(ctx, o, platform); err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
	}
	index, err := newIndex(images)
	if err != nil {
		return err
	}
	if err := writeArchive(filepath.Join(o.out, o.program+".tar"), tag, images, index); err != nil {
		return err
	}
	if !o.push {
		return nil
	}
	return pushImages(ctx, tag, index)
}

func buildImage(ctx context.Context, o options, platform string) (v1.Image, error) {
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		return nil, err
	}
	binary := filepath.Join(o.out, o.program+"-"+fileName(platform))
	if err := compileProgram(ctx, o.source, o.program, binary, o.version, p); err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(binary) }()
	c := content{program: o.program, version: o.version, root: o.root}
	if c.binary, err = os.ReadFile(binary); err != nil {
		return nil, err
	}
	if o.packages != "" {
		packages, err := os.ReadFile(o.packages)
		if err != nil {
			return nil, err
		}
		c.packages = strings.Join(strings.Fields(string(packages)), " ")
	}
	if o.notices != "" {
		if c.notices, err = os.ReadFile(o.notices); err != nil {
			return nil, err
		}
	}
	return newImage(c, p)
}

// fileName is a platform as a part of a file's name.
func fileName(platform string) string { return strings.ReplaceAll(platform, "/", "-") }
