// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package description

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// maxProbeSeconds is the most that a guest may take to answer a probe.
const maxProbeSeconds = 60

// Readiness says when a guest is ready: it answers at a TCP port within a time. Unlike a
// description, its file may change while the machine runs.
type Readiness struct {
	Port           int32 `json:"port"`
	TimeoutSeconds int32 `json:"timeoutSeconds"`
}

// ReadReadiness reads such a file. It returns nil for an empty one, which asks for no answer.
func ReadReadiness(path string) (*Readiness, error) {
	content, err := ReadLimited(path)
	if err != nil {
		return nil, fmt.Errorf("reading when the guest is ready: %w", err)
	}
	if len(content) == 0 {
		return nil, nil //nolint:nilnil // Nil is for no probe.
	}
	var r Readiness
	if err := yaml.UnmarshalStrict(content, &r); err != nil {
		return nil, fmt.Errorf("the readiness %s: %w", path, err)
	}
	switch {
	case r.Port < 1 || r.Port > 65535:
		return nil, fmt.Errorf("the readiness %s: port is %d: it must be from 1 to 65535", path, r.Port)
	case r.TimeoutSeconds < 1 || r.TimeoutSeconds > maxProbeSeconds:
		return nil, fmt.Errorf("the readiness %s: timeoutSeconds is %d: it must be from 1 to %d", path, r.TimeoutSeconds, maxProbeSeconds)
	}
	return &r, nil
}
