// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework/rules"
)

// Texts that no log, event, status, decision or command line may have (O12).
const (
	// Secret is in the user-data.
	Secret = "drover-secret-5c1b"
	// token is in the kubeconfig.
	token = "drover-token-90ae"
	// foreignAnswer is in the answers of a registry that is not Drover's.
	foreignAnswer = "drover-answer-77d2"
)

// concealed has those texts by their descriptions.
var concealed = map[string]string{"user-data": Secret, "the token of the kubeconfig": token, "the answer of a registry": foreignAnswer}

// checkSecrets looks for them in all that people can read.
func (w *World) checkSecrets(ctx context.Context, e Evidence, seen Observed, versions []*api.VirtualMachine) ([]Violation, error) {
	events, err := w.KubeClient.EventsV1().Events(w.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	decisions, err := readMatching(filepath.Join(w.Dir, decisionsFiles))
	if err != nil {
		return nil, err
	}
	return rules.CheckSecrets(concealed, map[string]any{
		"an event": events.Items, "a VirtualMachine": versions, "a log": e.Output, "a decision": decisions, "the engine": seen.Text,
	})
}

// readMatching returns the content of the files that match a pattern.
func readMatching(pattern string) (string, error) {
	paths, err := filepath.Glob(pattern)
	var all strings.Builder
	for _, path := range paths {
		content, readErr := os.ReadFile(path)
		if readErr != nil {
			return "", readErr
		}
		all.Write(content)
	}
	return all.String(), err
}
