// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// Each block of YAML in README.md and docs/ follows a comment with one of these marks, which GitHub does not show.
const (
	// markComplete is for objects that the API server accepts as they are.
	markComplete = "<!-- manifest: complete -->"
	// markFragment is for fields of spec, or for those of an object below the keys metadata and spec.
	markFragment = "<!-- manifest: fragment -->"
	// markOther begins the mark of other files, which names what they are.
	markOther = "<!-- no manifest: "
)

const marks = markComplete + ", " + markFragment + " or " + markOther + "WHAT -->"

// block is a block of YAML on a page.
type block struct {
	page string
	line int
	mark string // the line above it
	text string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", filepath.Base(b.page), b.line) }

// yamlLine is the first line of a block that is YAML without a fence that says so.
var yamlLine = regexp.MustCompile(`^    [a-zA-Z]+:( |$)`)

// patchLine is a command that changes fields of a VirtualMachine.
var patchLine = regexp.MustCompile(`kubectl patch vm \S+ --type merge -p '([^']+)'`)

// blocksOf returns the blocks of YAML of a page, and those that should be one.
func blocksOf(page, text string) (blocks []block) {
	lines := strings.Split(text, "\n")
	above := ""
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		found := block{page: page, line: i + 1}
		patch := patchLine.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), fence):
			content := fencedLines(lines[i:])
			if isYAML(strings.TrimSpace(line), content) {
				found.mark, found.text = strings.TrimSpace(above), strings.Join(content, "\n")
				blocks = append(blocks, found)
			}
			i += len(content) + 1
		case patch != nil:
			found.mark, found.text = markFragment, patch[1]
			blocks = append(blocks, found)
		case yamlLine.MatchString(line) && strings.TrimSpace(above) == "", strings.Contains(line, "apiVersion: cloudnative.tw/"):
			found.mark = "of a block without a fence"
			blocks = append(blocks, found)
		}
		above = line
	}
	return blocks
}

const fence = "```"

// fencedLines returns the lines between a fence, which is the first line, and its end, without the fence's indentation.
func fencedLines(lines []string) (content []string) {
	indentation, _, _ := strings.Cut(lines[0], fence)
	for _, line := range lines[1:] {
		if strings.TrimSpace(line) == fence {
			break
		}
		content = append(content, strings.TrimPrefix(line, indentation))
	}
	return content
}

// isYAML reports whether a fence says so, or its lines look so.
func isYAML(opening string, content []string) bool {
	label := strings.TrimPrefix(opening, fence)
	return label == "yaml" || label == "yml" || label == "" && len(content) > 0 && yamlLine.MatchString("    "+content[0])
}

// TestBlocks checks which blocks are found on a page, and with which marks.
func TestBlocks(t *testing.T) {
	t.Parallel()
	marked := markComplete + "\n```yaml\na: 1\n```\n"
	for text, want := range map[string][]block{
		"":     nil,
		marked: {{"", 2, markComplete, "a: 1"}},
		"- x\n  " + strings.ReplaceAll(marked, "\n", "\n  "):   {{"", 3, markComplete, "a: 1"}},
		"text\n\n```\nspec: {}\n```\n":                         {{"", 3, "", "spec: {}"}},
		"```yaml":                                              {{"", 1, "", ""}},
		"```go\nspec: 1\n```\n\n    $ kubectl get\n    a: b\n": nil,
		"text:\n\n    spec:\n      a: b\n":                     {{"", 3, "of a block without a fence", ""}},
		"    cat <<E\n    apiVersion: cloudnative.tw/v1\n":     {{"", 2, "of a block without a fence", ""}},
		"    kubectl patch vm NAME --type merge -p '{}'\n":     {{"", 1, markFragment, "{}"}},
	} {
		got := blocksOf("", text)
		assert.True(t, slices.Equal(got, want), "%q has %+v, want %+v", text, got, want)
	}
}

// objects are all kinds of objects of the server.
type objects struct {
	client dynamic.Interface
	mapper meta.RESTMapper
}

func connectToAll(t *testing.T) objects {
	t.Helper()
	client, err := dynamic.NewForConfig(cluster.Config)
	assert.NoError(t, err)
	discovered, err := discovery.NewDiscoveryClientForConfig(cluster.Config)
	assert.NoError(t, err)
	groups, err := restmapper.GetAPIGroupResources(discovered)
	assert.NoError(t, err)
	return objects{client, restmapper.NewDiscoveryRESTMapper(groups)}
}

// TestManifestsOfDocs applies what README.md and docs/ mark as manifests, by a dry run.
func TestManifestsOfDocs(t *testing.T) {
	s := connectToAll(t)
	found := map[string]int{}
	for _, b := range allBlocks(t) {
		t.Run(b.String(), func(t *testing.T) {
			mark := b.mark
			if strings.HasPrefix(mark, markOther) {
				mark = markOther
			}
			found[mark]++
			switch mark {
			case markComplete:
				s.checkComplete(t, b.text)
			case markFragment:
				s.checkFragment(t, b.text)
			case markOther:
			default:
				t.Errorf("the line above this YAML is %q, want %s", b.mark, marks)
			}
		})
	}
	assert.True(t, found[markComplete] >= 4 && found[markFragment] >= 8, "the marks are %v: the docs have more manifests", found)
}

func allBlocks(t *testing.T) (all []block) {
	t.Helper()
	for _, pattern := range []string{"README.md", "docs/*.md"} {
		pages, err := filepath.Glob("../../" + pattern)
		assert.NoError(t, err)
		for _, page := range pages {
			all = append(all, blocksOf(page, framework.ReadFile(t, page))...)
		}
	}
	return all
}

// TestExamples checks that the server accepts the manifests in examples/.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	assert.NoError(t, err)
	assert.True(t, len(files) >= 7, "the examples are %q", files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { connectToAll(t).checkComplete(t, framework.ReadFile(t, file)) })
	}
}

// checkComplete checks that the server would create the objects of a text.
func (s objects) checkComplete(t *testing.T, text string) {
	t.Helper()
	for manifest := range strings.SplitSeq(text, "\n---\n") {
		s.checkAccepted(t, decode(t, manifest))
	}
}

// checkFragment checks that the server would create the first example with the fields of a text.
func (s objects) checkFragment(t *testing.T, text string) {
	t.Helper()
	fields := map[string]any{}
	assert.NoError(t, yaml.UnmarshalStrict([]byte(text), &fields))
	if fields["spec"] == nil && fields["metadata"] == nil {
		fields = map[string]any{"spec": fields}
	}
	object := decode(t, framework.ReadFile(t, "../../examples/test-vm.yaml"))
	mergeFields(object.Object, fields)
	s.checkAccepted(t, object)
}

// mergeFields sets fields of an object, and keeps the others.
func mergeFields(object, fields map[string]any) {
	for name, value := range fields {
		inner, isMap := value.(map[string]any)
		before, wasMap := object[name].(map[string]any)
		if isMap && wasMap {
			mergeFields(before, inner)
			continue
		}
		object[name] = value
	}
}

// checkAccepted checks that the server would create an object, and knows all its fields.
func (s objects) checkAccepted(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	kind := object.GroupVersionKind()
	mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	assert.NoError(t, err)
	var client dynamic.ResourceInterface = s.client.Resource(mapping.Resource)
	if mapping.Scope == meta.RESTScopeNamespace {
		client = s.client.Resource(mapping.Resource).Namespace(metav1.NamespaceDefault)
	}
	_, err = client.Create(t.Context(), object, metav1.CreateOptions{DryRun: dryRun, FieldValidation: metav1.FieldValidationStrict})
	assert.NoError(t, err)
}
