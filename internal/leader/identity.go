// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// namespaceFile is where a pod reads its namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Identity returns a unique name for this process. The name begins with wanted, else
// with the pod's name, else with the host's name.
func Identity(wanted string) (string, error) {
	name := cmp.Or(wanted, os.Getenv("POD_NAME"))
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("no holder identity was given, and the name of the host is unknown: %w", err)
		}
		name = host
	}
	return name + "_" + string(uuid.NewUUID()), nil
}

// Namespace returns wanted, else the pod's namespace, else "default".
func Namespace(wanted string) (string, error) {
	if wanted != "" {
		return wanted, nil
	}
	content, err := os.ReadFile(namespaceFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("the pod's namespace: %w", err)
	}
	return cmp.Or(strings.TrimSpace(string(content)), "default"), nil
}
