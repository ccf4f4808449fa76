// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/claims"
)

// Reasons of Events about the layouts of GPUs.
const (
	reasonUncut = "LayoutNotKept"
	reasonCut   = "LayoutKept"
)

// keepLayouts cuts GPUs as the policy wants them, and tells what is in the way when that is another answer than before.
func (s *service) keepLayouts(ctx context.Context) {
	problems := s.engine.Partitions.KeepLayouts(ctx)
	now := wordsOfProblems(problems)
	if now == s.uncut {
		return
	}
	s.uncut = now
	if now == "" {
		klog.FromContext(ctx).Info("GPUs are cut as the policy wants")
		s.events.note(reasonCut, "GPUs are cut as the policy wants")
		return
	}
	for _, problem := range problems {
		klog.FromContext(ctx).Error(problem.Err, "A GPU is not cut as the policy wants; it is tried again", "gpu", problem.GPU, "every", finishEvery)
	}
	s.events.warn(reasonUncut, now)
}

// wordsOfProblems tells of all problems in one line; empty where there are none.
func wordsOfProblems(problems []claims.LayoutProblem) string {
	var words []string
	for _, p := range problems {
		words = append(words, fmt.Sprintf("%s: %v", p.GPU, p.Err))
	}
	return strings.ReplaceAll(strings.Join(words, "; "), "\n", ", ")
}
