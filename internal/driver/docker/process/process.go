// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package process configures the process of a container: its command, environment and working directory.
// It also explains why a process cannot be started. Start with Configure.
package process

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"

	"cloudnative.tw/drover/internal/driver"
)

// Labels record the spec's settings at the creation of a container, to detect later changes of the spec.
// The engine's settings of the container do not show these, because they include the image's settings.
const (
	// LabelCommand and LabelArgs are hashes, since the texts may be long; empty for empty fields.
	LabelCommand = "cloudnative.tw/command"
	LabelArgs    = "cloudnative.tw/args"
	// LabelEnv has the names of the variables, separated by =, which no name contains. It lacks the values,
	// which may be secret: labels are exported more widely than a container's environment.
	LabelEnv        = "cloudnative.tw/env"
	LabelWorkingDir = "cloudnative.tw/working-dir"
	LabelUser       = "cloudnative.tw/user"
	LabelInit       = "cloudnative.tw/init"
	// LabelSysctls has a hash.
	LabelSysctls = "cloudnative.tw/sysctls"
)

// Configure adds the process to the configuration of a new container. It also sets empty labels, so that
// the container does not inherit labels of the same names from the image.
func Configure(config *container.Config, spec driver.ServerSpec) {
	config.Entrypoint, config.Cmd, config.WorkingDir, config.User = spec.Command, spec.Args, spec.WorkingDir, spec.User
	// An input that is open once ends with the connection that carries it: no other call of the engine ends it.
	config.OpenStdin, config.StdinOnce, config.Tty = spec.Stdin, spec.Stdin, spec.TTY
	var names []string
	for _, v := range spec.Env {
		names = append(names, v.Name)
		config.Env = append(config.Env, v.Name+"="+v.Value.Reveal())
	}
	wanted := RequestedBy(spec)
	config.Labels[LabelCommand], config.Labels[LabelArgs], config.Labels[LabelWorkingDir] = wanted.Command, wanted.Args, wanted.WorkingDir
	config.Labels[LabelUser], config.Labels[LabelInit], config.Labels[LabelSysctls] = wanted.User, wanted.Init, wanted.Sysctls
	config.Labels[LabelEnv] = strings.Join(names, "=")
}

// WantsInit returns whether the engine starts an init as process 1, as docker run --init does, or nil to leave that to the
// engine's configuration.
func WantsInit(spec driver.ServerSpec) *bool {
	if spec.Init == "" {
		return nil
	}
	return new(spec.Init == driver.InitDrover)
}

// SysctlsOf returns the parameters of the kernel as the engine takes them.
func SysctlsOf(spec driver.ServerSpec) map[string]string {
	all := map[string]string{}
	for _, s := range spec.Sysctls {
		all[s.Name] = s.Value
	}
	return all
}

// Requested has the settings of a process that a spec requests, in a form that can be compared with ==.
type Requested struct {
	Command, Args, Env, WorkingDir, User, Init, Sysctls string
	Stdin, TTY                                          bool
}

// RequestedBy returns the settings that a spec requests.
func RequestedBy(spec driver.ServerSpec) Requested {
	var env []string
	for _, v := range spec.Env {
		env = append(env, v.Name+"="+v.Value.Reveal())
	}
	slices.Sort(env)
	var sysctls []string
	for _, s := range spec.Sysctls {
		sysctls = append(sysctls, s.Name+"="+s.Value)
	}
	return Requested{
		Command: hashList(spec.Command), Args: hashList(spec.Args), Env: hashList(env), WorkingDir: spec.WorkingDir,
		User: spec.User, Init: string(spec.Init), Sysctls: hashList(sysctls), Stdin: spec.Stdin, TTY: spec.TTY,
	}
}

// RequestedOf returns the settings that were requested at a container's creation. They are empty for a
// container of an earlier version, which lacks the labels.
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
		User: config.Labels[LabelUser], Init: config.Labels[LabelInit], Sysctls: config.Labels[LabelSysctls],
		Stdin: config.StdinOnce, TTY: config.Tty,
	}
}

// hashList returns a hash of a list whose elements lack NUL bytes, or "" for an empty list.
func hashList(list []string) string {
	if len(list) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(list, "\x00")))
	return hex.EncodeToString(sum[:])
}
