// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package process is about the process that a container runs: its command, environment and working
// directory, and why it cannot be started. Start with Configure.
package process

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"

	"cloudnative.tw/drover/internal/driver"
)

// Labels record what was requested at creation, to detect later whether the spec has changed. The
// engine's record does not tell, because it has the image's settings as well.
const (
	// LabelCommand and LabelArgs are hashes, since the texts may be long; empty if there are none.
	LabelCommand = "cloudnative.tw/command"
	LabelArgs    = "cloudnative.tw/args"
	// LabelEnv has the names of the variables, separated by =, which no name contains. Values may be
	// secret, and labels are exported more widely than what a container runs.
	LabelEnv        = "cloudnative.tw/env"
	LabelWorkingDir = "cloudnative.tw/working-dir"
)

// Configure adds to the configuration of a new container what it runs. The labels are set even if
// they are empty, so that those of the image cannot take their place.
func Configure(config *container.Config, spec driver.ServerSpec) {
	config.Entrypoint, config.Cmd, config.WorkingDir = spec.Command, spec.Args, spec.WorkingDir
	var names []string
	for _, v := range spec.Env {
		names = append(names, v.Name)
		config.Env = append(config.Env, v.Name+"="+v.Value.Reveal())
	}
	wanted := RequestedBy(spec)
	config.Labels[LabelCommand], config.Labels[LabelArgs], config.Labels[LabelWorkingDir] = wanted.Command, wanted.Args, wanted.WorkingDir
	config.Labels[LabelEnv] = strings.Join(names, "=")
}

// Requested has the settings that were requested for a process, as texts that can be compared.
type Requested struct {
	Command, Args, Env, WorkingDir string
}

// RequestedBy returns what a spec requests.
func RequestedBy(spec driver.ServerSpec) Requested {
	var env []string
	for _, v := range spec.Env {
		env = append(env, v.Name+"="+v.Value.Reveal())
	}
	slices.Sort(env)
	return Requested{Command: hashList(spec.Command), Args: hashList(spec.Args), Env: hashList(env), WorkingDir: spec.WorkingDir}
}

// RequestedOf returns what was requested of a container. A container without the labels is older than
// they are, and nothing was requested of it.
func RequestedOf(config *container.Config) Requested {
	names := strings.Split(config.Labels[LabelEnv], "=")
	var env []string
	for _, v := range config.Env {
		if name, _, _ := strings.Cut(v, "="); slices.Contains(names, name) {
			env = append(env, v)
		}
	}
	slices.Sort(env)
	return Requested{
		Command: config.Labels[LabelCommand], Args: config.Labels[LabelArgs], Env: hashList(env), WorkingDir: config.Labels[LabelWorkingDir],
	}
}

// hashList returns a text that differs for other lists, empty for an empty one. No element has a NUL.
func hashList(list []string) string {
	if len(list) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(list, "\x00")))
	return hex.EncodeToString(sum[:])
}
