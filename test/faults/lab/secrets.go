// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// Texts that no log, event, status, decision or command line may have (O12).
const (
	// Secret is in the user-data.
	Secret = "drover-secret-5c1b"
	// token is in the kubeconfig.
	token = "drover-token-90ae"
	// foreignAnswer is in what a registry answers that is not Drover's.
	foreignAnswer = "drover-answer-77d2"
)

// concealed are those texts, and what each is.
var concealed = map[string]string{Secret: "user-data", token: "the token of the kubeconfig", foreignAnswer: "the answer of a registry"}

// checkSecrets looks for them in all that people can read.
func (w *World) checkSecrets(ctx context.Context, e Evidence, seen Observed, versions []*api.VirtualMachine) ([]Violation, error) {
	events, err := w.Kube.EventsV1().Events(w.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	decisions, err := readMatching(filepath.Join(w.Dir, decisionsFiles))
	if err != nil {
		return nil, err
	}
	var all []Violation
	for where, what := range map[string]any{"an event": events.Items, "a VirtualMachine": versions, "a log": e.Output, "a decision": decisions, "the engine": seen.Text} {
		text, err := json.Marshal(what)
		if err != nil {
			return nil, err
		}
		for concealed, name := range concealed {
			if hasText(string(text), concealed) {
				all = append(all, Violation{Rule: "O12", Text: fmt.Sprintf("%s is in %s", name, where)})
			}
		}
	}
	return all, nil
}

// hasText reports whether a text has another one, as it is or in base64.
func hasText(text, wanted string) bool {
	return slices.ContainsFunc(append(base64Forms(wanted), wanted), func(form string) bool { return strings.Contains(text, form) })
}

// base64Forms returns what base64 makes of a text, which depends on where the text begins. The
// characters that depend on its neighbours are left out.
func base64Forms(text string) []string {
	var all []string
	for shift := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + text))
		begin, end := (shift*8+5)/6, (shift+len(text))*8/6
		all = append(all, encoded[begin:end])
	}
	return all
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
