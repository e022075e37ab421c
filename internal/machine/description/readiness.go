// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package description

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// maxProbeSeconds is the maximum of Readiness.TimeoutSeconds.
const maxProbeSeconds = 60

// Readiness says when a guest is ready: it accepts connections to a TCP port within a timeout.
// Unlike a description, the file may change while the machine runs.
type Readiness struct {
	Port           int32 `json:"port"`
	TimeoutSeconds int32 `json:"timeoutSeconds"`
}

// ReadReadiness reads a readiness file. It returns nil for an empty file: the guest is always ready.
func ReadReadiness(path string) (*Readiness, error) {
	content, err := ReadLimited(path)
	if err != nil {
		return nil, fmt.Errorf("reading the readiness file: %w", err)
	}
	if len(content) == 0 {
		return nil, nil //nolint:nilnil // There is nothing to probe.
	}
	var r Readiness
	if err := yaml.UnmarshalStrict(content, &r); err != nil {
		return nil, fmt.Errorf("parsing the readiness file %s: %w", path, err)
	}
	switch {
	case r.Port < 1 || r.Port > 65535:
		return nil, fmt.Errorf("the readiness file %s: port is %d: it must be from 1 to 65535", path, r.Port)
	case r.TimeoutSeconds < 1 || r.TimeoutSeconds > maxProbeSeconds:
		return nil, fmt.Errorf("the readiness file %s: timeoutSeconds is %d: it must be from 1 to %d", path, r.TimeoutSeconds, maxProbeSeconds)
	}
	return &r, nil
}
