// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// controller is the program whose image is built unless another is named.
const controller = "drover-controller"

// compileProgram builds a program that needs nothing around it.
func compileProgram(ctx context.Context, source, program, binary, version string, p *v1.Platform) error {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X cloudnative.tw/drover/cmd/"+program+"/app.Version="+version+" -X cloudnative.tw/drover/internal/format.Version="+version, "-o", binary, "./cmd/"+program)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Architecture)
	if p.Architecture == "arm" && p.Variant != "" {
		cmd.Env = append(cmd.Env, "GOARM="+p.Variant[1:])
	}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}
