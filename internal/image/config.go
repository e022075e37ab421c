// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// RunConfig has the settings that a container image has for the program in it.
type RunConfig struct {
	// Entrypoint and Cmd are the program and its arguments: the second follows the first,
	// and users replace it.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// Env are variables as NAME=value.
	Env        []string `json:"env,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	// User is a name or number, with a group behind a colon or without; empty for root.
	User string `json:"user,omitempty"`
	// StopSignal is a name such as SIGTERM, or a number; empty for SIGTERM.
	StopSignal string `json:"stopSignal,omitempty"`
	// ExposedPorts are such as 80/tcp, and Volumes are paths.
	ExposedPorts []string `json:"exposedPorts,omitempty"`
	Volumes      []string `json:"volumes,omitempty"`
}

const (
	// maxConfigFile is how many bytes the file of an image's configuration may have. It also
	// has the image's history and labels.
	maxConfigFile = 1 << 20
	// maxConfig is how many bytes a RunConfig may have as JSON.
	maxConfig = 256 << 10
)

// readConfig returns the configuration of an image. It refuses an image that is not for
// machines.
func readConfig(image v1.Image) (RunConfig, error) {
	text, err := image.RawConfigFile()
	if err != nil {
		return RunConfig{}, err
	}
	file, err := v1.ParseConfigFile(bytes.NewReader(text))
	if err != nil {
		return RunConfig{}, unusableContent("its configuration is not that of a container image")
	}
	if err := checkPlatform(file.OS, file.Architecture); err != nil {
		return RunConfig{}, err
	}
	c := RunConfig{
		Entrypoint: file.Config.Entrypoint, Cmd: file.Config.Cmd, Env: file.Config.Env,
		WorkingDir: file.Config.WorkingDir, User: file.Config.User, StopSignal: file.Config.StopSignal,
		ExposedPorts: slices.Sorted(maps.Keys(file.Config.ExposedPorts)),
		Volumes:      slices.Sorted(maps.Keys(file.Config.Volumes)),
	}
	if err := c.check(); err != nil {
		return RunConfig{}, unusableContent("its configuration: %w", err)
	}
	return c, nil
}

// checkPlatform refuses what is not for machines. An image that does not say what it is for
// is taken, as container engines do.
func checkPlatform(system, architecture string) error {
	if system != "" && system != platform.OS || architecture != "" && architecture != platform.Architecture {
		return unusableContent("it is for %.40q: machines run %s/%s", system+"/"+architecture, platform.OS, platform.Architecture)
	}
	return nil
}

// check refuses what no program can be started with.
func (c RunConfig) check() error {
	for _, text := range slices.Concat(c.Entrypoint, c.Cmd, c.Env, c.ExposedPorts, c.Volumes, []string{c.WorkingDir, c.User, c.StopSignal}) {
		if strings.Contains(text, "\x00") {
			return fmt.Errorf("%.80q has a zero byte", text)
		}
	}
	for _, variable := range c.Env {
		if strings.IndexByte(variable, '=') < 1 {
			return fmt.Errorf("the variable %.80q must be a name, = and a value", variable)
		}
	}
	text, err := json.Marshal(c)
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("it has %d bytes as JSON: it may have %d", len(text), maxConfig)
	}
	return err
}

// parseConfig reads a configuration as it is stored.
func parseConfig(text []byte) (RunConfig, error) {
	var c RunConfig
	if len(text) > maxConfig {
		return c, errors.New("the configuration is too large")
	}
	return c, json.Unmarshal(text, &c)
}
